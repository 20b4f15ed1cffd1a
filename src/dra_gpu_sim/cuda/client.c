/*
 * cuda-client: plays a program that uses a GPU.
 *
 * cuda-client [-g ORDINAL] [-t SECONDS] [COMMAND]...; without commands they are read from the standard input, one a line:
 *   alloc SIZE, free [SIZE], info, launch (a kernel begins), sync (it ends), fault, sleep SECONDS, hold, exit
 * The first line of output tells whether it is attached; each command prints one more. An error is a line like
 * CUDA_ERROR_OUT_OF_MEMORY 2. Exit status: 0; 1 after an error that ends the program (given as arguments: any); 64 when
 * used wrongly. "hold" goes on until the program is killed or MPS breaks down under it.
 */
#define _GNU_SOURCE
#include "cuda.h"

#include <ctype.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static struct context context;

static void on_term(int number) { _exit(128 + number); }

static int report(int code) {
    printf("%s %d\n", cuda_error_name(code), code);
    fflush(stdout);
    return 1;
}

static int done(void) {
    printf("ok used=%llu\n", cuda_used(&context) >> 20);
    fflush(stdout);
    return 0;
}

static int say(const char *text) {
    printf("%s\n", text);
    fflush(stdout);
    return 0;
}

/* Killed, or MPS gone: nothing else ends it. A terminated client stays a process. */
static int hold(void) {
    say("holding");
    for (int told = 0;;) {
        if (context.mps < 0) pause();
        cuda_listen(&context, -1);
        if (context.error && !told) told = report(context.error);
        if (context.gone || (context.error && context.error != CUDA_MPS_CLIENT_TERMINATED)) return 1;
    }
}

static int rest(const char *seconds) {
    struct timespec now;
    long until;
    clock_gettime(CLOCK_MONOTONIC, &now);
    until = now.tv_sec * 1000 + now.tv_nsec / 1000000 + (long)(atof(seconds) * 1000);
    for (long left = 1; left > 0 && !context.gone;) {
        clock_gettime(CLOCK_MONOTONIC, &now);
        left = until - (now.tv_sec * 1000 + now.tv_nsec / 1000000);
        if (left <= 0) break;
        if (context.mps < 0 || context.error) poll(NULL, 0, (int)left);
        else cuda_listen(&context, left);
    }
    return context.error ? report(context.error) : done();
}

static int kernel(int runs) {
    if (context.mps >= 0) wire_send(context.mps, "KERNEL %d\n", runs);
    return runs ? say("running") : done();
}

static int fault(void) {
    if (context.mps < 0) context.error = CUDA_LAUNCH_FAILED;
    else wire_send(context.mps, "FAULT\n");
    while (context.mps >= 0 && !context.error) cuda_listen(&context, -1);
    return report(context.error);
}

/* One command; 0 done, 1 an error was printed, 64 it is none. */
static int run(const char *verb, const char *argument) {
    char text[512];
    u64 bytes = 0;
    int code;
    cuda_listen(&context, 0);
    if (!strcmp(verb, "sync")) kernel(0);
    if (context.error) return report(context.error);
    if (!strcmp(verb, "sync")) return 0;
    if (!strcmp(verb, "hold")) return hold();
    if (!strcmp(verb, "launch")) return kernel(1);
    if (!strcmp(verb, "fault")) return fault();
    if (!strcmp(verb, "sleep") && argument) return rest(argument);
    if (!strcmp(verb, "info")) {
        cuda_information(&context, text, sizeof text);
        return say(text);
    }
    if (argument && !mps_size(argument, &bytes)) return 64;
    if (!strcmp(verb, "alloc") && argument) code = cuda_allocate(&context, bytes);
    else if (!strcmp(verb, "free")) {
        u64 used = cuda_used(&context), own = (u64)sim_state()->context_mib << 20;
        code = cuda_free(&context, argument ? bytes : used > own ? used - own : 0);
    } else return 64;
    return code == CUDA_OK ? done() : report(code);
}

static int unknown(const char *verb) {
    fprintf(stderr, "cuda-client: %s is no command: alloc SIZE, free [SIZE], info, launch, sync, fault, sleep SECONDS, hold, exit\n", verb);
    return 64;
}

static int from_arguments(int count, char **words) {
    for (int i = 0; i < count; i++) {
        const char *argument = i + 1 < count && isdigit((unsigned char)words[i + 1][0]) ? words[i + 1] : NULL;
        if (!strcmp(words[i], "exit")) return 0;
        int result = run(words[i], argument);
        if (result) return result == 64 ? unknown(words[i]) : 1;
        i += argument != NULL;
    }
    return 0;
}

/* The next line of input; NULL at its end, or when MPS broke down meanwhile. */
static char *next_line(char *to, size_t length) {
    struct pollfd both[2] = {{.fd = STDIN_FILENO, .events = POLLIN}, {.events = POLLIN}};
    for (;;) {
        both[1].fd = context.gone ? -1 : context.mps;
        if (poll(both, 2, -1) < 0) continue;
        if (both[1].revents) cuda_listen(&context, 0);
        if (context.gone) return NULL;
        if (both[0].revents) return wire_line(STDIN_FILENO, to, length, -1) == 1 ? to : NULL;
    }
}

static int from_input(void) {
    char line[512], *rest;
    while ((rest = next_line(line, sizeof line))) {
        char *verb = strsep(&rest, " ");
        if (!strcmp(verb, "exit")) return 0;
        if (!*verb) continue;
        if (run(verb, rest && *rest ? rest : NULL) == 64) {
            unknown(verb);
            report(CUDA_INVALID_VALUE);
        }
        if (context.gone) return 1;
    }
    return context.gone ? report(context.error) : 0;
}

int main(int argc, char **argv) {
    char text[512];
    long timeout_ms = 60000;
    int ordinal = 0, option;
    signal(SIGPIPE, SIG_IGN);
    signal(SIGTERM, on_term); /* as the first process of a container it would not end otherwise */
    signal(SIGINT, on_term);
    while ((option = getopt(argc, argv, "+g:t:")) != -1) {
        if (option == 'g') ordinal = atoi(optarg);
        else if (option == 't') timeout_ms = (long)(atof(optarg) * 1000);
        else return 64;
    }
    int code = cuda_attach(&context, ordinal, timeout_ms);
    if (code != CUDA_OK) return report(code);
    cuda_information(&context, text, sizeof text);
    printf("attached %s\n", text);
    fflush(stdout);
    int status = optind < argc ? from_arguments(argc - optind, argv + optind) : from_input();
    if (context.mps >= 0 && !context.gone) wire_send(context.mps, "BYE\n");
    return status;
}
