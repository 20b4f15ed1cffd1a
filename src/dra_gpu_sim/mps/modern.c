/* Commands of protocol 3: MODULE VERB [NAME] [--key=value]. Source: MPS documentation r615, "MPS v3 Interface". */
#define _GNU_SOURCE
#include "mps.h"

#include <stdlib.h>
#include <string.h>

struct arguments {
    const char *module, *verb;
    int count; /* of positional ones */
    const char *at[3];
    int options;
    struct { const char *key, *value; } option[16];
};

static int parse(int count, char **words, struct arguments *a, struct reply *r) {
    memset(a, 0, sizeof *a);
    a->module = words[0];
    a->verb = count > 1 ? words[1] : "help";
    for (int i = 2; i < count; i++) {
        int flag = !strncmp(words[i], "--", 2);
        char *key = words[i] + (flag ? 2 : 0), *value = strchr(key, '=');
        if (!flag && !value) {
            if (a->count == 3) {
                refuse(r, "Too many arguments: %s\n", words[i]);
                return 0;
            }
            a->at[a->count++] = words[i];
            continue;
        }
        if (a->options == 16) return 0;
        if (value) *value++ = 0;
        for (char *c = key; *c; c++)
            if (*c == '_') *c = '-';
        a->option[a->options].key = key;
        a->option[a->options++].value = value ? value : "true";
    }
    return 1;
}

static const char *option(const struct arguments *a, const char *key) {
    for (int i = 0; i < a->options; i++)
        if (!strcmp(a->option[i].key, key)) return a->option[i].value;
    return NULL;
}

static int only(const struct arguments *a, const char *known, struct reply *r) {
    for (int i = 0; i < a->options; i++) {
        char key[64];
        snprintf(key, sizeof key, " %s ", a->option[i].key);
        if (strstr(known, key)) continue;
        refuse(r, "Unknown option '--%s' for '%s %s'\n", a->option[i].key, a->module, a->verb);
        return 0;
    }
    return 1;
}

static int owner(const struct mps_connection *shell, const struct arguments *a, struct reply *r) {
    char module[32], verb[32];
    if (shell->uid == mps.owner) return 1;
    for (size_t i = 0; i < sizeof module; i++) module[i] = a->module[i] >= 'a' && a->module[i] <= 'z' ? a->module[i] - 32 : a->module[i];
    for (size_t i = 0; i < sizeof verb; i++) verb[i] = a->verb[i] >= 'a' && a->verb[i] <= 'z' ? a->verb[i] - 32 : a->verb[i];
    refuse(r, "Insufficient privileges for UID %u. '%.31s %.31s' requires server owner.\n", shell->uid, module, verb);
    return 0;
}

/* The limits that options set, checked as a whole before any is. */
static int limits_of(const struct arguments *a, struct mps_limits *l, struct reply *r) {
    const char *pinned = option(a, "pinned-memory-limit"), *percent = option(a, "active-thread-percentage"),
               *priority = option(a, "client-priority");
    struct mps_limits now = *l;
    if (pinned && strcmp(pinned, "-") && !mps_size(pinned, &now.pinned)) {
        refuse(r, "Invalid pinned memory limit '%s'\n", pinned);
        return 0;
    }
    if (pinned && !strcmp(pinned, "-")) now.pinned = 0;
    if (percent && (!mps_parse_percent(percent, &now.percent) || now.percent < 1)) {
        refuse(r, "Invalid active thread percentage '%s': 1 to 100\n", percent);
        return 0;
    }
    if (priority && strcmp(priority, "0") && strcmp(priority, "1")) {
        refuse(r, "Invalid client priority '%s': 0 or 1\n", priority);
        return 0;
    }
    if (priority) now.priority = atoi(priority);
    *l = now;
    return pinned || percent || priority;
}

static const char *status_of(const struct mps_server *s) {
    static const char *names[] = {"Stopped", "Initializing", "Ready", "Fault"};
    return names[s->status];
}

static void server_cells(const struct mps_server *s, char text[7][PATH_MAX]) {
    snprintf(text[0], PATH_MAX, "%s", s->name);
    snprintf(text[1], PATH_MAX, "%u", s->uid);
    snprintf(text[2], PATH_MAX, s->pid ? "%d" : "-", (int)s->pid);
    snprintf(text[3], PATH_MAX, "%s", status_of(s));
    snprintf(text[4], PATH_MAX, "%.2000s/%s", mps.pipe, s->name);
    snprintf(text[5], PATH_MAX, "%s", s->devices[0] ? s->devices : "-");
    for (char *c = text[5]; *c; c++)
        if (*c == ',') *c = ';'; /* one column of csv */
    snprintf(text[6], PATH_MAX, "-");
}

static void space_cells(const struct mps_namespace *n, char text[7][PATH_MAX]) {
    const struct mps_server *s = &mps.servers[n->server];
    snprintf(text[0], PATH_MAX, "%s", n->name);
    snprintf(text[1], PATH_MAX, "%s", s->name);
    snprintf(text[2], PATH_MAX, "%s", status_of(s));
    mps_size_text(n->limits.pinned, text[3], PATH_MAX);
    snprintf(text[4], PATH_MAX, n->limits.percent > 0 ? "%.2f" : "-", n->limits.percent);
    snprintf(text[5], PATH_MAX, "%d", n->limits.priority);
    snprintf(text[6], PATH_MAX, "%s", n->directory);
}

static const char *const server_titles[] = {"NAME", "UID", "PID", "STATUS", "PIPE DIRECTORY", "ALLOWED DEVICES", "CONTEXT IDS"};
static const char *const server_fields[] = {"name", "uid", "pid", "status", "pipe-directory", "allowed-devices", "context-ids"};
static const char *const space_titles[] = {"NAME", "SERVER", "SERVER STATUS", "PINNED MEMORY LIMIT",
                                           "ACTIVE THREAD PERCENTAGE", "CLIENT PRIORITY", "PIPE DIRECTORY"};
static const char *const space_fields[] = {"name", "server", "server-status", "pinned-memory-limit",
                                           "active-thread-percentage", "client-priority", "pipe-directory"};

static char cells[7][PATH_MAX];
static const char *const columns[7] = {cells[0], cells[1], cells[2], cells[3], cells[4], cells[5], cells[6]};

static void field(const char *wanted, const char *const *fields, struct reply *r) {
    char name[64];
    snprintf(name, sizeof name, "%s", wanted ? wanted : "");
    for (char *c = name; *c; c++)
        if (*c == '_') *c = '-';
    for (int i = 0; i < 7; i++)
        if (!strcmp(fields[i], name)) {
            say(r, "%s\n", cells[i]);
            return;
        }
    refuse(r, "Unknown field '%s'\n", name);
}

static struct mps_server *server_named(const char *name, struct reply *r) {
    struct mps_server *s = name ? mps_server_named(name) : NULL;
    if (!s) refuse(r, name ? "Server '%s' not found\n" : "A server is needed: --server=NAME%s\n", name ? name : "");
    return s;
}

static void create_server(struct mps_connection *shell, const struct arguments *a, struct reply *r) {
    char name[MPS_NAME];
    const char *uid = option(a, "uid"), *devices = option(a, "allowed-devices");
    if (!only(a, " uid allowed-devices locality-domains ", r) || !owner(shell, a, r)) return;
    if (!a->count && !uid) {
        refuse(r, "A name or --uid is needed\n");
        return;
    }
    if (a->count) snprintf(name, sizeof name, "%s", a->at[0]);
    else snprintf(name, sizeof name, "uid_%.32s", uid);
    if ((a->count && strlen(a->at[0]) >= sizeof name) || !mps_valid_name(name)) {
        refuse(r, "Invalid name '%s': [a-z0-9_]{1,64}\n", a->count ? a->at[0] : name);
        return;
    }
    if (mps_server_named(name)) {
        refuse(r, "Server '%s' already exists\n", name);
        return;
    }
    struct mps_server *s = mps_server_new(name, uid ? (uid_t)atol(uid) : shell->uid, 1);
    if (!s) {
        refuse(r, "Failed to create server '%s': see control.log\n", name);
        return;
    }
    if (devices) snprintf(s->devices, sizeof s->devices, "%s", devices);
    s->start = 1;
}

static void delete_server(struct mps_connection *shell, const struct arguments *a, struct reply *r) {
    if (!only(a, " force ", r) || !owner(shell, a, r)) return;
    struct mps_server *s = server_named(a->at[0], r);
    if (!s) return;
    int clients = mps_clients_of(mps_server_index(s), -1);
    if (clients && !option(a, "force")) {
        refuse(r, "Server '%s' has %d active client(s); use --force\n", s->name, clients);
        return;
    }
    for (int i = 0; i < MPS_MAX_CONNECTIONS; i++) {
        struct mps_connection *c = &mps.connections[i];
        if (c->fd >= 0 && c->kind == MPS_CLIENT && c->server == mps_server_index(s))
            mps_client_end(c, CUDA_MPS_CLIENT_TERMINATED);
    }
    s->declared = 0;
    mps_server_stop(s);
    if (s->link < 0) {
        mps_server_remove(s);
        return;
    }
    shell->waits = WAIT_SHUTDOWN;
    shell->target = (u64)s->pid;
}

static void set_server(struct mps_connection *shell, const struct arguments *a, struct reply *r) {
    if (!only(a, " uid pinned-memory-limit active-thread-percentage locality-domains client-priority ", r)) return;
    if (!owner(shell, a, r)) return;
    struct mps_server *s = server_named(a->at[0], r);
    if (!s) return;
    struct mps_namespace *n = mps_space(s->name, "default");
    if (mps_clients_of(mps_server_index(s), (int)(n - mps.spaces))) {
        refuse(r, "Server '%s' has active clients in its default namespace\n", s->name);
        return;
    }
    if (!limits_of(a, &n->limits, r) && !r->status && !a->options) refuse(r, "Nothing to set\n");
}

static void server(struct mps_connection *shell, const struct arguments *a, struct reply *r) {
    struct table t;
    if (!strcmp(a->verb, "create")) create_server(shell, a, r);
    else if (!strcmp(a->verb, "delete")) delete_server(shell, a, r);
    else if (!strcmp(a->verb, "set")) set_server(shell, a, r);
    else if (!strcmp(a->verb, "get")) {
        struct mps_server *s = server_named(a->at[0], r);
        if (!s) return;
        server_cells(s, cells);
        field(a->at[1], server_fields, r);
    } else if (!strcmp(a->verb, "list")) {
        if (!only(a, " format ", r) || !table_open(&t, r, option(a, "format"), 7, server_titles)) return;
        for (int i = 0; i < MPS_MAX_SERVERS; i++) {
            if (!mps.servers[i].used || (a->count && strcmp(a->at[0], mps.servers[i].name))) continue;
            server_cells(&mps.servers[i], cells);
            table_row(&t, columns);
        }
    } else refuse(r, "Unknown command 'server %s': create, delete, list, set, get\n", a->verb);
}

static void create_space(struct mps_connection *shell, const struct arguments *a, struct reply *r) {
    char problem[512];
    if (!only(a, " server ", r) || !owner(shell, a, r)) return;
    struct mps_server *s = server_named(option(a, "server"), r);
    if (!s) return;
    if (!a->count || !mps_valid_name(a->at[0])) refuse(r, "Invalid name '%s': [a-z0-9_]{1,64}\n", a->count ? a->at[0] : "");
    else if (mps_space(s->name, a->at[0])) refuse(r, "Namespace '%s' already exists in server '%s'\n", a->at[0], s->name);
    else if (!mps_space_new(mps_server_index(s), a->at[0], problem, sizeof problem)) refuse(r, "%s\n", problem);
}

static void change_space(struct mps_connection *shell, const struct arguments *a, struct reply *r) {
    int removal = !strcmp(a->verb, "delete");
    const char *known = removal ? " server force " : " server pinned-memory-limit active-thread-percentage client-priority ";
    if (!only(a, known, r) || !owner(shell, a, r)) return;
    struct mps_server *s = server_named(option(a, "server"), r);
    if (!s) return;
    struct mps_namespace *n = a->count ? mps_space(s->name, a->at[0]) : NULL;
    if (!n) {
        refuse(r, "Namespace '%s' not found in server '%s'\n", a->count ? a->at[0] : "", s->name);
        return;
    }
    int space = (int)(n - mps.spaces), clients = mps_clients_of(mps_server_index(s), space);
    if (clients && !(removal && option(a, "force"))) {
        refuse(r, "Namespace '%s' has %d active client(s)%s\n", n->name, clients, removal ? "; use --force" : "");
        return;
    }
    if (!removal) {
        if (!limits_of(a, &n->limits, r) && !r->status) refuse(r, "Nothing to set\n");
        return;
    }
    if (n->is_default) {
        refuse(r, "The default namespace goes with its server\n");
        return;
    }
    for (int i = 0; i < MPS_MAX_CONNECTIONS; i++) {
        struct mps_connection *c = &mps.connections[i];
        if (c->fd < 0 || c->space != space) continue;
        if (c->kind == MPS_CLIENT) mps_client_end(c, CUDA_MPS_CLIENT_TERMINATED);
        else if (c->kind != MPS_TERMINATED) c->broken = 1;
        c->space = -1;
    }
    mps_space_remove(n);
}

static void namespaces(struct mps_connection *shell, const struct arguments *a, struct reply *r) {
    struct table t;
    if (!strcmp(a->verb, "create")) create_space(shell, a, r);
    else if (!strcmp(a->verb, "delete") || !strcmp(a->verb, "set")) change_space(shell, a, r);
    else if (!strcmp(a->verb, "get")) {
        struct mps_namespace *n = a->count > 1 ? mps_space(a->at[1], a->at[0]) : NULL;
        if (!n) {
            refuse(r, "Namespace '%s' not found\n", a->count ? a->at[0] : "");
            return;
        }
        space_cells(n, cells);
        field(a->at[2], space_fields, r);
    } else if (!strcmp(a->verb, "list")) {
        const char *of = option(a, "server");
        if (!only(a, " server format ", r) || !table_open(&t, r, option(a, "format"), 7, space_titles)) return;
        for (int i = 0; i < MPS_MAX_NAMESPACES; i++) {
            struct mps_namespace *n = &mps.spaces[i];
            if (!n->used || (of && strcmp(of, mps.servers[n->server].name)) || (a->count && strcmp(a->at[0], n->name))) continue;
            space_cells(n, cells);
            table_row(&t, columns);
        }
    } else refuse(r, "Unknown command 'namespace %s': create, delete, list, set, get\n", a->verb);
}

void mps_modern(struct mps_connection *shell, int count, char **words, struct reply *r) {
    struct arguments a;
    char line[256] = "";
    for (int i = 0; i < count; i++) snprintf(line + strlen(line), sizeof line - strlen(line), "%s%s", i ? " " : "", words[i]);
    mps_log("Cmd:%s", line);
    if (!parse(count, words, &a, r)) return;
    if (!strcmp(a.module, "server")) server(shell, &a, r);
    else if (!strcmp(a.module, "namespace")) namespaces(shell, &a, r);
    else if (!strcmp(a.module, "client")) mps_module_client(shell, a.verb, a.count, a.at, option(&a, "server"), option(&a, "format"), r);
    else if (!strcmp(a.module, "device")) mps_module_device(a.verb, option(&a, "server"), option(&a, "format"), r);
    else if (!strcmp(a.module, "feature")) mps_module_feature(a.verb, a.at[0], shell->uid == mps.owner, r);
    else if (!strcmp(a.module, "memacct")) {
        if (!owner(shell, &a, r)) return;
        if (option(&a, "audit-log")) mps.audit_log = !strcmp(option(&a, "audit-log"), "true");
        say(r, "audit_log: %s\n", mps.audit_log ? "true" : "false");
    } else if (!strcmp(a.module, "quit")) {
        if (owner(shell, &a, r)) mps_quit(shell, option(&a, "t") ? atol(option(&a, "t")) : 0);
    } else if (!strcmp(a.module, "sm-partition")) refuse(r, "sm-partition is not simulated\n");
    else refuse(r, "Unknown module '%s': server, namespace, client, device, feature, memacct\n", a.module);
}
