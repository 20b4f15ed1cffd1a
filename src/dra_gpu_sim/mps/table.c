/* Replies, and lists in the two formats of protocol 3. */
#include "mps.h"

#include <stdarg.h>
#include <string.h>
#include <strings.h>

static void append(struct reply *r, const char *format, va_list arguments) {
    size_t room = sizeof r->text - r->length;
    int length = vsnprintf(r->text + r->length, room, format, arguments);
    if (length > 0) r->length += (size_t)length < room ? (size_t)length : room - 1;
}

void say(struct reply *r, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    append(r, format, arguments);
    va_end(arguments);
}

void refuse(struct reply *r, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    append(r, format, arguments);
    va_end(arguments);
    r->status = 1;
}

/* Columns are as wide as their titles, and a longer value is cut: only csv is whole. */
static void row(struct table *t, const char *const *cells, const char *const *titles) {
    for (int i = 0; i < t->columns; i++) {
        int width = (int)strlen(titles[i]) + 2;
        if (t->format) say(t->to, "%s%s", i ? "," : "", cells[i]);
        else if (cells != titles && (int)strlen(cells[i]) > width) say(t->to, "%.*s... ", width - 3, cells[i]);
        else say(t->to, "%-*s ", width, cells[i]);
    }
    say(t->to, "\n");
}

static const char *const *current;

int table_open(struct table *t, struct reply *r, const char *format, int columns, const char *const *titles) {
    char copy[64];
    *t = (struct table){.header = 1, .columns = columns, .to = r};
    snprintf(copy, sizeof copy, "%s", format ? format : "table");
    char *option = strchr(copy, ',');
    if (option) *option++ = 0;
    t->format = !strcmp(copy, "csv");
    t->header = !option;
    current = titles;
    if ((strcmp(copy, "csv") && strcmp(copy, "table")) || (option && strcmp(option, "noheader"))) {
        refuse(r, "Invalid format '%s': use table or csv, with ',noheader' or without\n", format);
        return 0;
    }
    if (t->header) row(t, titles, titles);
    return 1;
}

void table_row(struct table *t, const char *const *cells) { row(t, cells, current); }
