/* nvidia-cuda-mps-control: the control daemon, and the commands that are given to it. */
#define _GNU_SOURCE
#include "mps.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char usage[] =
    "Usage: nvidia-cuda-mps-control [-d | -f] [-p 2|3] [-m | --multiuser | -multiuser-server] [-a FILE] [-q] [-v] [-h]\n"
    "       nvidia-cuda-mps-control MODULE VERB [NAME]... [--key=value]...\n"
    "Without arguments, commands are read from the standard input.\n";

struct options {
    int background, foreground, protocol, multi_user, quit;
    const char *apply;
};

const char *nvmlErrorString(nvmlReturn_t code);

static const char *pipe_directory(void) {
    const char *given = getenv("CUDA_MPS_PIPE_DIRECTORY");
    return given && *given ? given : "/tmp/nvidia-mps";
}

static unsigned long driver_branch(void) {
    return sim_attach() == NVML_SUCCESS ? strtoul(sim_state()->driver_version, NULL, 10) : 0;
}

static int is(const char *word, const char *a, const char *b) { return !strcmp(word, a) || (b && !strcmp(word, b)); }

/* 1 to go on, otherwise 0 and the exit status. */
static int parse(int argc, char **argv, struct options *o, int *status) {
    int modern = driver_branch() >= 615;
    *status = 1;
    for (int i = 1; i < argc; i++) {
        if (is(argv[i], "-h", "--help")) {
            printf("%s", usage);
            *status = 0;
            return 0;
        }
        if (is(argv[i], "-v", "--version")) {
            printf("CUDA MPS control daemon, driver %s (simulated)\n", sim_state() ? sim_state()->driver_version : "not loaded");
            *status = 0;
            return 0;
        }
        if (is(argv[i], "-d", NULL)) o->background = 1;
        else if (is(argv[i], "-f", NULL)) o->foreground = 1;
        else if (is(argv[i], "-M", "-multiuser-server") || (modern && is(argv[i], "-m", "--multiuser"))) o->multi_user = 1;
        else if (modern && is(argv[i], "-q", "--quit")) o->quit = 1;
        else if (modern && is(argv[i], "-a", "--apply") && i + 1 < argc) o->apply = argv[++i];
        else if (modern && is(argv[i], "-p", NULL) && i + 1 < argc && (is(argv[i + 1], "2", "3"))) o->protocol = atoi(argv[++i]);
        else if (is(argv[i], "-S", "--static-partitioning")) {
            fprintf(stderr, "Static partitioning is not simulated\n");
            return 0;
        } else {
            fprintf(stderr, "Unrecognized option: %s\n%s", argv[i], usage);
            return 0;
        }
    }
    const char *variable = getenv("CUDA_MPS_PROTOCOL_VERSION");
    if (modern && variable && is(variable, "2", "3")) o->protocol = atoi(variable);
    return 1;
}

/* Faults that were injected into this program's calls, and its line in the log of calls. */
static int faulted(const char *call) {
    struct ctx c;
    nvmlReturn_t result = sim_program(&c, call, -1);
    if (result == NVML_ERROR_DRIVER_NOT_LOADED && !c.locked) return 0;
    sim_leave(&c, result);
    if (result == NVML_SUCCESS) return 0;
    fprintf(stderr, "%s failed: %s\n", call, nvmlErrorString(result));
    return 1;
}

static void write_pid(pid_t pid) {
    char path[PATH_MAX + 64];
    snprintf(path, sizeof path, "%s/nvidia-cuda-mps-control.pid", mps.pipe);
    FILE *f = fopen(path, "we");
    if (!f) return;
    fprintf(f, "%d", (int)pid);
    fclose(f);
    chmod(path, 0666);
}

/* What the daemon's own environment sets for everyone. */
static void defaults(void) {
    const char *percent = getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"), *pins = getenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"),
               *priority = getenv("CUDA_MPS_CLIENT_PRIORITY");
    char copy[2048], *rest = copy, *entry;
    if (percent) mps_parse_percent(percent, &mps.defaults.percent);
    if (priority) mps.defaults.priority = atoi(priority);
    snprintf(copy, sizeof copy, "%s", pins ? pins : "");
    while (*copy && (entry = strsep(&rest, ",")) && mps.defaults.pin_count < MPS_MAX_PINS) {
        struct mps_pin *p = &mps.defaults.pins[mps.defaults.pin_count];
        char *value = strchr(entry, '=');
        if (!value || !mps_size(value + 1, &p->bytes)) continue;
        snprintf(p->device, sizeof p->device, "%.*s", (int)(value - entry), entry);
        mps.defaults.pin_count++;
    }
    unsetenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE");
}

/* Stands alone: no terminal, no file of whoever started it. */
static void detach(void) {
    int nothing = open("/dev/null", O_RDWR);
    setsid();
    for (int fd = 0; fd < 3; fd++) dup2(nothing, fd);
    if (nothing > 2) close(nothing);
    if (chdir("/") != 0) return;
}

static int run_daemon(const struct options *o) {
    char problem[600];
    const char *log = getenv("CUDA_MPS_LOG_DIRECTORY");
    if (faulted(o->background ? "nvidia-cuda-mps-control -d" : "nvidia-cuda-mps-control -f")) return 1;
    if (sim_attach() != NVML_SUCCESS) {
        fprintf(stderr, "The NVIDIA driver is not loaded\n");
        return 1;
    }
    snprintf(mps.pipe, sizeof mps.pipe, "%s", pipe_directory());
    snprintf(mps.log, sizeof mps.log, "%s", log && *log ? log : "/var/log/nvidia-mps");
    mps.protocol = o->protocol == 3 ? 3 : 2;
    mps.multi_user = o->multi_user;
    mps.foreground = o->foreground;
    mps.owner = geteuid();
    mps.memacct = mps.context_share = 1;
    umask(0022);
    if (!wire_fits(mps.pipe)) return o->background ? 0 : 1; /* it ends without a word, and nobody finds it */
    if (o->multi_user && geteuid() != 0) {
        fprintf(stderr, "The multi-user mode needs root\n");
        return 1;
    }
    defaults();
    if (!mps_prepare(problem, sizeof problem) || (o->apply && !mps_apply(o->apply, problem, sizeof problem))) {
        fprintf(stderr, "%s\n", problem);
        return 1;
    }
    if (mps.protocol == 3) {
        printf("CUDA_MPS_PIPE_DIRECTORY=%s\n", mps.pipe);
        fflush(stdout);
    }
    pid_t pid = o->background ? fork() : getpid();
    if (pid < 0) return 1;
    if (pid > 0) write_pid(pid);
    if (pid > 0 && o->background) return 0;
    if (o->background) detach();
    return mps_run();
}

/* One command, and what is answered; its exit status, or -1 when the daemon has gone. */
static int ask(int daemon, const char *line) {
    char head[64], text[MPS_REPLY];
    size_t length;
    int status;
    if (!wire_send(daemon, "%s\n", line) || wire_line(daemon, head, sizeof head, -1) != 1) return -1;
    if (sscanf(head, "%d %zu", &status, &length) != 2 || length > sizeof text || !wire_bytes(daemon, text, length)) return -1;
    fwrite(text, 1, length, status && strchr(line, WIRE_SEPARATOR[0]) ? stderr : stdout);
    fflush(stdout);
    return status;
}

static int connect_shell(int *protocol) {
    char line[64];
    int daemon = wire_connect(pipe_directory(), geteuid() == 0 ? "control_privileged" : "control");
    if (daemon >= 0 && wire_send(daemon, "UI\n") && wire_line(daemon, line, sizeof line, -1) == 1) {
        *protocol = atoi(line);
        return daemon;
    }
    fprintf(stderr, "Cannot find MPS control daemon process\n");
    return -1;
}

static int shell(void) {
    char line[4096], call[128], *word;
    int protocol, daemon = connect_shell(&protocol), status = 0;
    if (daemon < 0) return 1;
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = 0;
        word = line + strspn(line, " \t");
        if (!*word) continue;
        snprintf(call, sizeof call, "nvidia-cuda-mps-control %.*s", (int)strcspn(word, " \t"), word);
        if (faulted(call)) return 1;
        for (char *c = word; protocol == 3 && *c; c++)
            if (*c == ' ') *c = WIRE_SEPARATOR[0];
        int last = !strncmp(word, "quit", 4) && strchr(" \x1f", word[4]), answer = ask(daemon, word);
        if (last || answer < 0) return last ? answer > 0 : 1;
        if (protocol == 3) status = answer;
    }
    return status;
}

static int one_command(int count, char **words) {
    char line[WIRE_LINE] = "", call[128];
    int protocol, daemon;
    size_t at = 0;
    snprintf(call, sizeof call, "nvidia-cuda-mps-control %.40s%s%.40s", words[0], count > 1 ? " " : "", count > 1 ? words[1] : "");
    if (faulted(call)) return 1;
    daemon = connect_shell(&protocol);
    if (daemon < 0) return 1;
    if (protocol != 3) {
        fprintf(stderr, "The MPS control daemon runs protocol 2: give commands on the standard input\n");
        return 1;
    }
    for (int i = 0; i < count && at < sizeof line - 1; i++)
        at += (size_t)snprintf(line + at, sizeof line - at, "%s%s", i ? WIRE_SEPARATOR : "", words[i]);
    if (at >= sizeof line - 1 || strchr(line, '\n')) return 1;
    int status = ask(daemon, line);
    return status < 0 ? !is(words[0], "quit", NULL) : status;
}

int main(int argc, char **argv) {
    struct options o = {0};
    int status;
    signal(SIGPIPE, SIG_IGN);
    if (argc > 1 && argv[1][0] != '-') {
        if (driver_branch() >= 615) return one_command(argc - 1, argv + 1);
        fprintf(stderr, "Unrecognized option: %s\n%s", argv[1], usage);
        return 1;
    }
    if (!parse(argc, argv, &o, &status)) return status;
    if (o.quit) return one_command(1, (char *[]){"quit"});
    if (o.background || o.foreground) return run_daemon(&o);
    return shell();
}
