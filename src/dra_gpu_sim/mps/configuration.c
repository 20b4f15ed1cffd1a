/*
 * The configuration file of protocol 3 (-a FILE): the part of TOML that it needs, one value a line.
 *
 * Source: MPS documentation r615, "MPS v3 Configuration File". An unknown key is an error; the file is read once.
 */
#define _GNU_SOURCE
#include "mps.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum { TOP, SERVER, SPACE, MEMACCT, CONTEXT_SHARE };

struct reader {
    int section, line;
    int server;
    struct mps_limits *limits;
    char *problem;
    size_t length;
};

static int wrong(struct reader *r, const char *format, ...) {
    int at = snprintf(r->problem, r->length, "line %d: ", r->line);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(r->problem + at, r->length - (size_t)at, format, arguments);
    va_end(arguments);
    return 0;
}

static char *trim(char *text) {
    text += strspn(text, " \t");
    for (size_t end = strlen(text); end && strchr(" \t\r\n", text[end - 1]); end--) text[end - 1] = 0;
    return text;
}

static void uncomment(char *text) {
    char quote = 0;
    for (; *text; text++) {
        if (quote ? *text == quote : *text == '"' || *text == '\'') quote = quote ? 0 : *text;
        if (*text == '#' && !quote) *text = 0;
        if (!*text) return;
    }
}

/* A string without its quotes, a number, a boolean, or an array of strings joined by commas. */
static char *value_of(char *text) {
    char *to = text, *from = text;
    size_t length = strlen(text);
    if (length > 1 && *text == '[' && text[length - 1] == ']') {
        text[length - 1] = 0;
        for (from++; *from; from++)
            if (!strchr("\"' \t", *from)) *to++ = *from;
        *to = 0;
        return text;
    }
    if (length > 1 && (*text == '"' || *text == '\'') && text[length - 1] == *text) {
        text[length - 1] = 0;
        return text + 1;
    }
    return text;
}

static int section(struct reader *r, char *name) {
    char *parts[5] = {0}, *rest = name;
    int count = 0;
    while (count < 5 && rest) parts[count++] = trim(strsep(&rest, "."));
    if (count == 2 && !strcmp(parts[0], "features")) {
        r->section = !strcmp(parts[1], "memacct") ? MEMACCT : !strcmp(parts[1], "context-share") ? CONTEXT_SHARE : -1;
        return r->section > 0 ? 1 : wrong(r, "unknown feature '%s'", parts[1]);
    }
    if (count < 2 || strcmp(parts[0], "servers") || !mps_valid_name(parts[1])) return wrong(r, "unknown table '%s'", name);
    struct mps_server *s = mps_server_named(parts[1]);
    if (!s) {
        s = mps_server_new(parts[1], mps.owner, 1);
        if (!s) return wrong(r, "server '%s' could not be created", parts[1]);
        s->start = 1;
    }
    r->server = mps_server_index(s);
    if (count == 2) {
        r->section = SERVER;
        r->limits = &mps_space(s->name, "default")->limits;
        return 1;
    }
    if (count != 4 || strcmp(parts[2], "namespaces") || !mps_valid_name(parts[3]))
        return wrong(r, "table '%s' is unknown or not simulated", parts[2]);
    struct mps_namespace *n = mps_space(s->name, parts[3]);
    char problem[256];
    if (!n) n = mps_space_new(r->server, parts[3], problem, sizeof problem);
    if (!n) return wrong(r, "%s", problem);
    r->section = SPACE;
    r->limits = &n->limits;
    return 1;
}

static int limit(struct reader *r, const char *key, const char *value) {
    if (!strcmp(key, "pinned_memory_limit")) return mps_size(value, &r->limits->pinned) || wrong(r, "invalid size '%s'", value);
    if (!strcmp(key, "active_thread_percentage"))
        return mps_parse_percent(value, &r->limits->percent) || wrong(r, "invalid percentage '%s'", value);
    if (strcmp(key, "client_priority")) return -1;
    r->limits->priority = atoi(value);
    return 1;
}

static int pair(struct reader *r, const char *key, const char *value) {
    int known = r->section == SERVER || r->section == SPACE ? limit(r, key, value) : -1;
    if (known >= 0) return known;
    struct mps_server *s = &mps.servers[r->server];
    if (r->section == SERVER && !strcmp(key, "allowed_devices")) snprintf(s->devices, sizeof s->devices, "%s", value);
    else if (r->section == SERVER && !strcmp(key, "uid")) s->uid = (uid_t)atol(value);
    else if (r->section == SERVER && !strcmp(key, "locality_domains")) return 1;
    else if (r->section == MEMACCT && !strcmp(key, "enabled")) mps.memacct = !strcmp(value, "true");
    else if (r->section == MEMACCT && !strcmp(key, "audit_log")) mps.audit_log = !strcmp(value, "true");
    else if (r->section == CONTEXT_SHARE && !strcmp(key, "enabled")) mps.context_share = !strcmp(value, "true");
    else if (r->section == CONTEXT_SHARE && !strcmp(key, "default_socket")) return 1;
    else if (r->section == TOP && !strcmp(key, "schema_version"))
        return !strcmp(value, "1.0") || wrong(r, "unsupported schema_version '%s'", value);
    else return wrong(r, "unknown key '%s'", key);
    return 1;
}

int mps_apply(const char *path, char *problem, size_t length) {
    char text[4096];
    struct reader r = {.section = TOP, .problem = problem, .length = length};
    FILE *f = fopen(path, "re");
    int good = 1;
    if (!f) {
        snprintf(problem, length, "cannot read %.200s", path);
        return 0;
    }
    while (good && fgets(text, sizeof text, f)) {
        r.line++;
        uncomment(text);
        char *line = trim(text), *equals = strchr(line, '=');
        size_t end = strlen(line);
        if (!end) continue;
        if (line[0] == '[' && line[end - 1] == ']') {
            int doubled = end > 3 && line[1] == '[';
            line[end - 1 - (size_t)doubled] = 0;
            good = section(&r, line + 1 + doubled);
        } else if (!equals) good = wrong(&r, "expected key = value");
        else {
            *equals = 0;
            good = pair(&r, trim(line), value_of(trim(equals + 1)));
        }
    }
    fclose(f);
    return good;
}
