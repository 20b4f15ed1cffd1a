/* The control daemon: its servers, namespaces, clients and connections. */
#ifndef SIM_MPS_H
#define SIM_MPS_H

#include "devices.h"
#include "wire.h"

#include <limits.h>
#include <stdio.h>
#include <sys/types.h>

#define MPS_NAME 65
#define MPS_MAX_SERVERS 32
#define MPS_MAX_NAMESPACES 512
#define MPS_MAX_CONNECTIONS 1024
#define MPS_MAX_PINS 32
#define MPS_REPLY 65536

enum { MPS_STOPPED, MPS_INITIALIZING, MPS_ACTIVE, MPS_FAULT };

struct mps_pin {
    char device[64]; /* as it was written; an unknown one has no effect */
    u64 bytes;
};

/* What binds a client when it attaches. */
struct mps_limits {
    double percent; /* 0: none */
    u64 pinned;     /* of every GPU; 0: none */
    int priority;
    int pin_count; /* of single GPUs */
    struct mps_pin pins[MPS_MAX_PINS];
};

struct mps_server {
    int used;
    char name[MPS_NAME];
    int declared; /* by a command or a file, and kept when its process ends */
    int start;    /* as soon as may be */
    int retire;   /* once its clients are gone */
    int failed;   /* what its process could not do, 0 if nothing */
    int status;
    int hung;     /* a client was killed in the middle of a kernel */
    uid_t uid;
    pid_t pid;
    int link; /* to its process; -1 without one */
    char devices[1024];
    struct mps_devices at;
    struct mps_limits limits; /* classic MPS; with protocol 3 the namespaces have them */
};

struct mps_namespace {
    int used;
    int server;
    int listener;
    int is_default;
    char name[MPS_NAME];
    char directory[PATH_MAX];
    struct mps_limits limits;
};

enum { MPS_NEW, MPS_SHELL, MPS_PENDING, MPS_CLIENT, MPS_LOST, MPS_TERMINATED };
enum { WAIT_NOTHING, WAIT_TERMINATE, WAIT_SHUTDOWN, WAIT_QUIT, WAIT_FOREVER };

/* A connection: of a shell or of a client. */
struct mps_connection {
    int fd; /* -1: free */
    int kind;
    int broken;
    u32 pid; /* as the daemon's pid namespace numbers it, 0 if that has no number for it */
    uid_t uid;
    size_t length;
    char buffer[WIRE_LINE];
    /* A shell. */
    int waits;
    u64 target; /* the client or server that is waited for */
    /* A client. */
    u64 id;
    int server; /* -1: not decided */
    int space;
    int slot;
    u64 serial;
    u64 visible; /* bit i: the client has the node of GPU i */
    int ordinal;
    int in_kernel;
    int terminate; /* as soon as its kernel is done */
    int has_list;
    struct mps_device device;
    char list[1024], percent[32], pinned[2048], priority[8], cgroup[512], name[64];
};

struct mps_daemon {
    int protocol;
    int multi_user;
    int foreground;
    uid_t owner;
    char pipe[PATH_MAX];
    char log[PATH_MAX];
    int control, privileged, lock;
    int quitting;
    long quit_at; /* milliseconds; 0: whenever the clients have gone */
    u64 last_id;
    struct mps_limits defaults;
    int memacct, audit_log, context_share;
    struct mps_server servers[MPS_MAX_SERVERS];
    struct mps_namespace spaces[MPS_MAX_NAMESPACES];
    struct mps_connection connections[MPS_MAX_CONNECTIONS];
};

extern struct mps_daemon mps;

/* A reply that grows: what a command prints, and its exit status. */
struct reply {
    int status;
    size_t length;
    char text[MPS_REPLY];
};
void say(struct reply *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
void refuse(struct reply *r, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* log.c */
void mps_log(const char *format, ...) __attribute__((format(printf, 1, 2)));
void mps_server_log(const struct mps_server *s, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* daemon.c */
int mps_listen(const char *directory, const char *name, int mode);
int mps_prepare(char *problem, size_t length); /* directories, lock, sockets */
int mps_run(void);
void mps_answer(struct mps_connection *c, struct reply *r);

/* servers.c */
struct mps_server *mps_server_named(const char *name);
struct mps_server *mps_server_of_pid(pid_t pid);
struct mps_server *mps_server_new(const char *name, uid_t uid, int declared);
int mps_server_index(const struct mps_server *s);
void mps_server_start(struct mps_server *s);
void mps_server_stop(struct mps_server *s);
void mps_server_heard(struct mps_server *s);
void mps_server_remove(struct mps_server *s);
int mps_clients_of(int server, int space); /* attached ones; space -1: of all namespaces */
int mps_draining(int server);
struct mps_namespace *mps_space(const char *server, const char *name);
struct mps_namespace *mps_space_new(int server, const char *name, char *problem, size_t length);
void mps_space_remove(struct mps_namespace *n);
int mps_valid_name(const char *name);

/* attach.c */
void mps_hello(struct mps_connection *c, char *line);
void mps_admit(struct mps_connection *c);
void mps_client_line(struct mps_connection *c, const char *line);
void mps_client_gone(struct mps_connection *c);
void mps_client_end(struct mps_connection *c, int code); /* takes its context away: sticky error CODE */
struct mps_connection *mps_client_of(int server, u32 pid);
u64 mps_pin_for(const struct mps_limits *l, const struct mps_devices *base, const struct mps_device *d);

/* modules.c */
void mps_module_client(struct mps_connection *shell, const char *verb, int count, const char *const *at, const char *server,
                       const char *format, struct reply *r);
void mps_module_device(const char *verb, const char *server, const char *format, struct reply *r);
void mps_module_feature(const char *verb, const char *name, int owner, struct reply *r);

/* classic.c, modern.c */
void mps_classic(struct mps_connection *shell, char *line, struct reply *r);
void mps_modern(struct mps_connection *shell, int count, char **words, struct reply *r);
void mps_quit(struct mps_connection *shell, long seconds);
int mps_parse_percent(const char *text, double *percent);
int mps_command_of(u32 pid, char *to, size_t length);

/* table.c */
struct table {
    int format; /* 0 table, 1 csv */
    int header;
    int columns;
    struct reply *to;
};
int table_open(struct table *t, struct reply *r, const char *format, int columns, const char *const *titles);
void table_row(struct table *t, const char *const *cells);

/* configuration.c */
int mps_apply(const char *path, char *problem, size_t length);

#endif
