/* How the programs of MPS speak to the control daemon: lines over its sockets. The real protocol is not published. */
#ifndef SIM_MPS_WIRE_H
#define SIM_MPS_WIRE_H

#include <stddef.h>

#define WIRE_LINE 8192
#define WIRE_SEPARATOR "\x1f" /* between the words of a line */

int wire_connect(const char *directory, const char *socket); /* -1: nobody listens there */
int wire_send(int fd, const char *format, ...) __attribute__((format(printf, 2, 3)));
int wire_line(int fd, char *to, size_t length, long timeout_ms); /* 1; 0 at the end; -1 too late */
int wire_bytes(int fd, char *to, size_t length);
int wire_split(char *line, char **words, int room);
int wire_fits(const char *directory); /* whether DIRECTORY/control is a socket path the kernel takes: 107 bytes */

#endif
