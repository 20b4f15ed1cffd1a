/* Lines over sockets. */
#define _GNU_SOURCE
#include "wire.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

int wire_fits(const char *directory) {
    return strlen(directory) + strlen("/control") < sizeof((struct sockaddr_un *)0)->sun_path;
}

int wire_connect(const char *directory, const char *socket_name) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int length = snprintf(address.sun_path, sizeof address.sun_path, "%s/%s", directory, socket_name);
    if (length >= (int)sizeof address.sun_path) return -1;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    while (connect(fd, (struct sockaddr *)&address, sizeof address) != 0) {
        if (errno == EINTR) continue;
        close(fd);
        return -1;
    }
    return fd;
}

int wire_send(int fd, const char *format, ...) {
    char text[WIRE_LINE];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (length >= (int)sizeof text) return 0;
    for (int sent = 0; sent < length;) {
        ssize_t now = send(fd, text + sent, (size_t)(length - sent), MSG_NOSIGNAL);
        if (now < 0 && errno != EINTR) return 0;
        if (now > 0) sent += (int)now;
    }
    return 1;
}

int wire_line(int fd, char *to, size_t length, long timeout_ms) {
    size_t at = 0;
    while (at + 1 < length) {
        struct pollfd wait = {.fd = fd, .events = POLLIN};
        int ready = poll(&wait, 1, (int)timeout_ms);
        if (ready < 0 && errno == EINTR) continue;
        if (ready == 0) return -1;
        ssize_t got = read(fd, to + at, 1);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) break;
        if (to[at] == '\n') {
            to[at] = 0;
            return 1;
        }
        at++;
    }
    to[at] = 0;
    return 0;
}

int wire_bytes(int fd, char *to, size_t length) {
    for (size_t at = 0; at < length;) {
        ssize_t got = read(fd, to + at, length - at);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return 0;
        at += (size_t)got;
    }
    return 1;
}

int wire_split(char *line, char **words, int room) {
    int count = 0;
    for (char *at = line; at && count < room;) words[count++] = strsep(&at, WIRE_SEPARATOR);
    return count;
}
