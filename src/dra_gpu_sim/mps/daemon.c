/* The control daemon's directories, sockets and loop. */
#define _GNU_SOURCE
#include "mps.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

struct mps_daemon mps;

static volatile sig_atomic_t asked_to_end;

static void on_term(int number) {
    (void)number;
    asked_to_end = 1;
}

int mps_listen(const char *directory, const char *name, int mode) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (snprintf(address.sun_path, sizeof address.sun_path, "%s/%s", directory, name) >= (int)sizeof address.sun_path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    unlink(address.sun_path); /* left by a daemon that was killed */
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) || chmod(address.sun_path, (mode_t)mode) ||
        listen(fd, 128)) {
        if (fd >= 0) close(fd);
        return -1;
    }
    return fd;
}

static int folder(const char *path, char *problem, size_t length) {
    if (mkdir(path, 0755) == 0 || errno == EEXIST) return 1;
    snprintf(problem, length, "Failed to create %.300s: %s", path, strerror(errno));
    return 0;
}

int mps_prepare(char *problem, size_t length) {
    char path[PATH_MAX + 64];
    for (int i = 0; i < MPS_MAX_CONNECTIONS; i++) mps.connections[i].fd = -1;
    if (!folder(mps.pipe, problem, length) || !folder(mps.log, problem, length)) return 0;
    snprintf(path, sizeof path, "%s/control_lock", mps.pipe);
    mps.lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (mps.lock < 0) {
        snprintf(problem, length, "Failed to open %.300s: %s", path, strerror(errno));
        return 0;
    }
    fchmod(mps.lock, 0666);
    if (flock(mps.lock, LOCK_EX | LOCK_NB) != 0) {
        snprintf(problem, length, "An instance of this daemon is already running");
        return 0;
    }
    snprintf(path, sizeof path, "%s/log", mps.pipe);
    if (mkfifo(path, 0777) == 0 || errno == EEXIST) chmod(path, 0777);
    mps.control = mps_listen(mps.pipe, "control", 0666);
    mps.privileged = mps_listen(mps.pipe, "control_privileged", 0755);
    if (mps.control < 0 || mps.privileged < 0) {
        snprintf(problem, length, "Failed to listen in %.300s: %s", mps.pipe, strerror(errno));
        return 0;
    }
    return 1;
}

static void accept_one(int listener, int space) {
    struct ucred who = {0};
    socklen_t length = sizeof who;
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0) return;
    for (int i = 0; i < MPS_MAX_CONNECTIONS; i++) {
        struct mps_connection *c = &mps.connections[i];
        if (c->fd >= 0) continue;
        memset(c, 0, sizeof *c);
        getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &length);
        c->fd = fd;
        c->pid = (u32)who.pid;
        c->uid = who.uid;
        c->space = space;
        c->server = space >= 0 ? mps.spaces[space].server : -1;
        return;
    }
    close(fd);
}

void mps_answer(struct mps_connection *c, struct reply *r) {
    c->waits = WAIT_NOTHING;
    if (!wire_send(c->fd, "%d %zu\n", r->status, r->length)) c->broken = 1;
    for (size_t at = 0; at < r->length && !c->broken;) {
        ssize_t now = send(c->fd, r->text + at, r->length - at, MSG_NOSIGNAL);
        if (now <= 0) c->broken = 1;
        else at += (size_t)now;
    }
}

static void command(struct mps_connection *c, char *line) {
    static struct reply r;
    char *words[32];
    r.status = 0;
    r.length = 0;
    if (mps.protocol == 3) mps_modern(c, wire_split(line, words, 32), words, &r);
    else mps_classic(c, line, &r);
    if (c->waits == WAIT_NOTHING) mps_answer(c, &r);
}

static void heard(struct mps_connection *c, char *line) {
    if (c->kind == MPS_SHELL) command(c, line);
    else if (c->kind != MPS_NEW) mps_client_line(c, line);
    else if (!strncmp(line, "CLIENT" WIRE_SEPARATOR, 7)) mps_hello(c, line);
    else if (!strcmp(line, "UI")) {
        c->kind = MPS_SHELL;
        c->server = c->space = -1;
        mps_log("NEW UI");
        wire_send(c->fd, "%d\n", mps.protocol);
    } else c->broken = 1;
}

static void read_connection(struct mps_connection *c) {
    char line[WIRE_LINE], *end;
    ssize_t got = recv(c->fd, c->buffer + c->length, sizeof c->buffer - c->length, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) c->broken = 1;
    else c->length += (size_t)got;
    while (c->fd >= 0 && (end = memchr(c->buffer, '\n', c->length))) {
        size_t length = (size_t)(end - c->buffer) + 1;
        memcpy(line, c->buffer, length);
        line[length - 1] = 0;
        memmove(c->buffer, end + 1, c->length - length);
        c->length -= length;
        heard(c, line);
    }
    if (c->length == sizeof c->buffer) c->broken = 1;
}

static void close_connection(struct mps_connection *c) {
    if (c->kind == MPS_SHELL) mps_log("UI closed");
    close(c->fd);
    c->fd = -1;
    mps_client_gone(c);
    c->kind = MPS_NEW;
    c->server = -1;
}

static int server_with(pid_t pid) { return mps_server_of_pid(pid) != NULL; }

static int client_with(u64 id) {
    for (int i = 0; i < MPS_MAX_CONNECTIONS; i++) {
        const struct mps_connection *c = &mps.connections[i];
        if (c->fd >= 0 && c->id == id && (c->kind == MPS_CLIENT || c->kind == MPS_LOST)) return 1;
    }
    return 0;
}

static void settle_servers(void) {
    for (int i = 0; i < MPS_MAX_SERVERS; i++) {
        struct mps_server *s = &mps.servers[i];
        if (!s->used) continue;
        int attached = mps_clients_of(i, -1);
        if (s->start && s->link < 0) mps_server_start(s);
        if (s->status == MPS_FAULT && !attached) s->status = MPS_ACTIVE;
        if ((s->retire || mps.quitting) && !attached && s->link >= 0) mps_server_stop(s);
    }
}

/* One round over the connections: ends what is to end, then attaches what may; 1 if that leaves more to do. */
static int settle_connections(void) {
    int again = 0;
    for (int i = 0; i < MPS_MAX_CONNECTIONS; i++) {
        struct mps_connection *c = &mps.connections[i];
        if (c->fd < 0) continue;
        if (c->kind == MPS_CLIENT && c->terminate && !c->in_kernel) mps_client_end(c, CUDA_MPS_CLIENT_TERMINATED);
        if (c->broken) close_connection(c);
    }
    settle_servers();
    for (int i = 0; i < MPS_MAX_CONNECTIONS; i++) {
        struct mps_connection *c = &mps.connections[i];
        if (c->fd >= 0 && c->kind == MPS_PENDING) mps_admit(c);
        again += c->fd >= 0 && c->broken;
    }
    return again;
}

/* Whatever became possible by the last event: starts, ends, attachments, answers that were waited for. */
static int settle(void) {
    static struct reply done;
    int live = 0, clients = 0;
    while (settle_connections()) {}
    for (int i = 0; i < MPS_MAX_SERVERS; i++) {
        const struct mps_server *s = &mps.servers[i];
        if (!s->used) continue;
        clients += mps_clients_of(i, -1);
        live += s->link >= 0;
    }
    for (int i = 0; i < MPS_MAX_CONNECTIONS; i++) {
        struct mps_connection *c = &mps.connections[i];
        if (c->fd < 0 || c->kind != MPS_SHELL) continue;
        done.status = 0;
        done.length = 0;
        if (c->waits == WAIT_TERMINATE && !client_with(c->target)) {
            if (mps.protocol == 2) say(&done, "0\n");
            mps_answer(c, &done);
        }
        if (c->waits == WAIT_SHUTDOWN && !server_with((pid_t)c->target)) mps_answer(c, &done);
    }
    return mps.quitting && !live && !clients;
}

static void force(void) {
    for (int i = 0; i < MPS_MAX_SERVERS; i++)
        if (mps.servers[i].used && mps.servers[i].pid > 0) kill(mps.servers[i].pid, SIGKILL);
}

static void end(void) {
    static struct reply done;
    char path[PATH_MAX + 64];
    for (int defaults = 0; defaults < 2; defaults++)
        for (int i = 0; i < MPS_MAX_NAMESPACES; i++)
            if (mps.spaces[i].used && mps.spaces[i].is_default == defaults) mps_space_remove(&mps.spaces[i]);
    snprintf(path, sizeof path, "%s/nvidia-cuda-mps-control.pid", mps.pipe);
    unlink(path);
    mps_log("Exit");
    flock(mps.lock, LOCK_UN);
    for (int i = 0; i < MPS_MAX_CONNECTIONS; i++)
        if (mps.connections[i].fd >= 0 && mps.connections[i].waits == WAIT_QUIT) mps_answer(&mps.connections[i], &done);
}

struct watched {
    struct pollfd fds[MPS_MAX_CONNECTIONS + MPS_MAX_NAMESPACES + MPS_MAX_SERVERS + 4];
    int what[MPS_MAX_CONNECTIONS + MPS_MAX_NAMESPACES + MPS_MAX_SERVERS + 4];
    int count;
};
enum { ROOT_SOCKET = 0, SPACE_SOCKET = 1 << 16, SERVER_LINK = 2 << 16, CONNECTION = 3 << 16, STANDARD_INPUT = 4 << 16 };

static void watch(struct watched *w, int fd, int what) {
    w->fds[w->count] = (struct pollfd){.fd = fd, .events = POLLIN};
    w->what[w->count++] = what;
}

static void watch_all(struct watched *w) {
    w->count = 0;
    watch(w, mps.control, ROOT_SOCKET);
    watch(w, mps.privileged, ROOT_SOCKET);
    if (mps.foreground) watch(w, STDIN_FILENO, STANDARD_INPUT);
    for (int i = 0; i < MPS_MAX_NAMESPACES; i++)
        if (mps.spaces[i].used) watch(w, mps.spaces[i].listener, SPACE_SOCKET + i);
    for (int i = 0; i < MPS_MAX_SERVERS; i++)
        if (mps.servers[i].used && mps.servers[i].link >= 0) watch(w, mps.servers[i].link, SERVER_LINK + i);
    for (int i = 0; i < MPS_MAX_CONNECTIONS; i++)
        if (mps.connections[i].fd >= 0) watch(w, mps.connections[i].fd, CONNECTION + i);
}

/* -f takes commands on its standard input and ends when that does. */
static void standard_input(void) {
    static char line[WIRE_LINE];
    static struct reply r;
    static struct mps_connection shell;
    char *words[32], *word, *rest = line;
    int count = 0;
    if (wire_line(STDIN_FILENO, line, sizeof line, 1000) != 1) {
        mps.foreground = 0;
        mps_quit(NULL, 0);
        return;
    }
    r.status = 0;
    r.length = 0;
    shell.uid = geteuid();
    shell.fd = -1;
    if (mps.protocol == 2) mps_classic(&shell, line, &r);
    else {
        while (count < 32 && (word = strsep(&rest, " ")))
            if (*word) words[count++] = word;
        if (count) mps_modern(&shell, count, words, &r);
    }
    fwrite(r.text, 1, r.length, stdout);
    fflush(stdout);
}

/* Removing a server or namespace while the round goes on: what is gone by then is passed over. */
static void dispatch(const struct watched *w) {
    for (int i = 0; i < w->count; i++) {
        int kind = w->what[i] & ~0xffff, index = w->what[i] & 0xffff;
        if (!w->fds[i].revents) continue;
        if (kind == ROOT_SOCKET) accept_one(w->fds[i].fd, -1);
        if (kind == SPACE_SOCKET && mps.spaces[index].used && mps.spaces[index].listener == w->fds[i].fd)
            accept_one(w->fds[i].fd, index);
        if (kind == SERVER_LINK && mps.servers[index].used && mps.servers[index].link == w->fds[i].fd)
            mps_server_heard(&mps.servers[index]);
        if (kind == CONNECTION && mps.connections[index].fd == w->fds[i].fd) read_connection(&mps.connections[index]);
        if (kind == STANDARD_INPUT) standard_input();
    }
}

int mps_run(void) {
    static struct watched w;
    signal(SIGPIPE, SIG_IGN);
    signal(SIGCHLD, SIG_IGN);
    struct sigaction term = {.sa_handler = on_term};
    sigset_t ends, outside;
    sigemptyset(&ends);
    sigaddset(&ends, SIGTERM);
    sigaddset(&ends, SIGINT);
    sigprocmask(SIG_BLOCK, &ends, &outside); /* they come while it waits, and at no other moment */
    sigaction(SIGTERM, &term, NULL);
    sigaction(SIGINT, &term, NULL);
    mps_log("Start");
    while (!settle()) {
        if (asked_to_end) {
            asked_to_end = 0;
            mps_quit(NULL, 0);
            mps.quit_at = sim_now_ms();
            continue;
        }
        long left = mps.quit_at ? mps.quit_at - sim_now_ms() : -1;
        if (mps.quit_at && left <= 0) {
            force();
            mps.quit_at = 0;
            left = -1;
        }
        watch_all(&w);
        struct timespec wait = {left / 1000, left % 1000 * 1000000L};
        if (ppoll(w.fds, (nfds_t)w.count, left < 0 ? NULL : &wait, &outside) > 0) dispatch(&w);
    }
    end();
    return 0;
}
