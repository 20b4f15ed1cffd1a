/* control.log and server.log. */
#define _GNU_SOURCE
#include "mps.h"

#include <stdarg.h>
#include <time.h>
#include <unistd.h>

static void line(const char *path, const char *who, pid_t pid, const char *format, va_list arguments) {
    struct timespec now;
    struct tm local;
    char stamp[64];
    FILE *f = fopen(path, "ae");
    if (!f) return;
    clock_gettime(CLOCK_REALTIME, &now);
    localtime_r(&now.tv_sec, &local);
    strftime(stamp, sizeof stamp, "%Y-%m-%d %H:%M:%S", &local);
    fprintf(f, "[%s.%03ld %s %d] ", stamp, now.tv_nsec / 1000000, who, (int)pid);
    vfprintf(f, format, arguments);
    fputc('\n', f);
    fclose(f);
}

void mps_log(const char *format, ...) {
    char path[PATH_MAX + 16];
    va_list arguments;
    snprintf(path, sizeof path, "%s/control.log", mps.log);
    va_start(arguments, format);
    line(path, "Control", getpid(), format, arguments);
    va_end(arguments);
}

void mps_server_log(const struct mps_server *s, const char *format, ...) {
    char path[PATH_MAX + 96];
    va_list arguments;
    if (mps.protocol == 3) snprintf(path, sizeof path, "%s/%s/server.log", mps.log, s->name);
    else snprintf(path, sizeof path, "%s/server.log", mps.log);
    va_start(arguments, format);
    line(path, "Server", s->pid, format, arguments);
    va_end(arguments);
}
