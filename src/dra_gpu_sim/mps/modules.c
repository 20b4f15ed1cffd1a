/* The modules of protocol 3 that concern clients and devices. */
#define _GNU_SOURCE
#include "mps.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static int attached(const struct mps_connection *c) { return c->fd >= 0 && (c->kind == MPS_CLIENT || c->kind == MPS_LOST); }

static int ordinal_of(const struct mps_connection *c) {
    const struct mps_server *s = &mps.servers[c->server];
    for (int i = 0; i < s->at.count; i++)
        if (s->at.at[i].gpu == c->device.gpu && s->at.at[i].gi == c->device.gi && s->at.at[i].ci == c->device.ci) return i;
    return 0;
}

static const char *space_of(const struct mps_connection *c) { return c->space >= 0 ? mps.spaces[c->space].name : "-"; }

static void list_clients(const char *server, const char *format, struct reply *r) {
    static const char *const titles[] = {"PID", "SERVER", "DEVICE", "NAMESPACE", "COMMAND"};
    char pid[16], device[16], command[512];
    struct table t;
    if (!table_open(&t, r, format, 5, titles)) return;
    for (int i = 0; i < MPS_MAX_CONNECTIONS; i++) {
        const struct mps_connection *c = &mps.connections[i];
        if (!attached(c) || (server && strcmp(server, mps.servers[c->server].name))) continue;
        snprintf(pid, sizeof pid, "%u", c->pid);
        snprintf(device, sizeof device, "%d", ordinal_of(c));
        mps_command_of(c->pid, command, sizeof command);
        table_row(&t, (const char *const[]){pid, mps.servers[c->server].name, device, space_of(c), command});
    }
}

static void get_client(const struct mps_connection *c, const char *field, struct reply *r) {
    char path[64], command[512];
    struct stat info = {0};
    const struct sim_gpu *g = &sim_state()->gpus[c->device.gpu];
    snprintf(path, sizeof path, "/proc/%u/ns/pid", c->pid);
    if (stat(path, &info) != 0) info.st_ino = 0;
    mps_command_of(c->pid, command, sizeof command);
    if (!strcmp(field, "pid")) say(r, "%u\n", c->pid);
    else if (!strcmp(field, "server")) say(r, "%s\n", mps.servers[c->server].name);
    else if (!strcmp(field, "device")) say(r, "%d\n", ordinal_of(c));
    else if (!strcmp(field, "pci-id")) say(r, "%s\n", g->bus_id);
    else if (!strcmp(field, "linux-ns")) say(r, "%lu\n", (unsigned long)info.st_ino);
    else if (!strcmp(field, "maws-ns")) say(r, "%s\n", space_of(c));
    else if (!strcmp(field, "cmd")) say(r, "%s\n", command);
    else refuse(r, "Unknown field '%s'\n", field);
}

void mps_module_client(struct mps_connection *shell, const char *verb, int count, const char *const *at, const char *server,
                       const char *format, struct reply *r) {
    if (!strcmp(verb, "list")) {
        list_clients(server, format, r);
        return;
    }
    if (strcmp(verb, "get") && strcmp(verb, "terminate")) {
        refuse(r, "Unknown command 'client %s': list, get, terminate\n", verb);
        return;
    }
    struct mps_connection *c = count ? mps_client_of(-1, (u32)atoi(at[0])) : NULL;
    if (!c) {
        refuse(r, "Client '%s' not found\n", count ? at[0] : "");
        return;
    }
    if (!strcmp(verb, "get")) {
        get_client(c, count > 1 ? at[1] : "", r);
        return;
    }
    if (shell->uid != mps.owner) {
        refuse(r, "Insufficient privileges for UID %u. 'CLIENT TERMINATE' requires server owner.\n", shell->uid);
        return;
    }
    if (mps.servers[c->server].hung) {
        shell->waits = WAIT_FOREVER;
        return;
    }
    c->terminate = 1;
    shell->waits = WAIT_TERMINATE;
    shell->target = c->id;
}

void mps_module_device(const char *verb, const char *server, const char *format, struct reply *r) {
    static const char *const titles[] = {"ORDINAL", "SERVER", "PCI ID", "DEVICE UUID", "NAME", "TOTAL SMS", "TOTAL CHUNKS", "ATTRIBUTES"};
    char ordinal[16], sms[16], chunks[16];
    struct table t;
    if (strcmp(verb, "list")) {
        refuse(r, "Unknown command 'device %s': list\n", verb);
        return;
    }
    if (!table_open(&t, r, format, 8, titles)) return;
    for (int i = 0; i < MPS_MAX_SERVERS; i++) {
        const struct mps_server *s = &mps.servers[i];
        if (!s->used || s->link < 0 || (server && strcmp(server, s->name))) continue;
        for (int n = 0; n < s->at.count; n++) {
            const struct sim_gpu *g = &sim_state()->gpus[s->at.at[n].gpu];
            u32 total = mps_sm_total(sim_state(), &s->at.at[n]);
            snprintf(ordinal, sizeof ordinal, "%d", n);
            snprintf(sms, sizeof sms, "%u", total);
            snprintf(chunks, sizeof chunks, "%u", total / 8);
            table_row(&t, (const char *const[]){ordinal, s->name, g->bus_id, mps_uuid(sim_state(), &s->at.at[n]), g->name, sms, chunks, "-"});
        }
    }
}

void mps_module_feature(const char *verb, const char *name, int owner, struct reply *r) {
    int *which = name && !strcmp(name, "memacct") ? &mps.memacct : name && !strcmp(name, "context-share") ? &mps.context_share : NULL;
    if (!strcmp(verb, "describe")) {
        say(r, "FEATURE STATE MODULE COVERS\nmemacct %s memacct -\ncontext-share %s context-share -\n",
            mps.memacct ? "enabled (default)" : "disabled", mps.context_share ? "enabled (default)" : "disabled");
    } else if (!which || (strcmp(verb, "enable") && strcmp(verb, "disable"))) {
        refuse(r, "Use feature enable|disable memacct|context-share, or feature describe\n");
    } else if (!owner) {
        refuse(r, "Insufficient privileges. 'FEATURE' requires server owner.\n");
    } else *which = !strcmp(verb, "enable");
}
