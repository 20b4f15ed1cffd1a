/* Mapping, locking and logging: the way into and out of every call. */
#define _GNU_SOURCE
#include "core.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t process_lock = PTHREAD_MUTEX_INITIALIZER;
static struct sim_state *state;
static int state_fd = -1;
static int log_fd = -1;
static pid_t opened_by;
static ino_t state_inode;
static unsigned references;
static char root[PATH_MAX];
static char dev[PATH_MAX];

struct sim_state *sim_state(void) { return state; }
int sim_state_file(void) { return state_fd; }
const char *sim_root(void) { return root; }
const char *sim_dev(void) { return dev; }

/* Where the file that holds this very code lies, from the process's own map: true for a library and for a program. */
static int own_path(char *to, size_t length) {
    FILE *maps = fopen("/proc/self/maps", "re");
    char line[PATH_MAX + 128];
    unsigned long here = (unsigned long)(void *)&own_path, low, high;
    int found = 0;
    if (!maps) return 0;
    while (!found && fgets(line, sizeof line, maps)) {
        char *path = strchr(line, '/');
        if (sscanf(line, "%lx-%lx", &low, &high) != 2 || here < low || here >= high || !path) continue;
        path[strcspn(path, "\n")] = 0;
        snprintf(to, length, "%s", path);
        found = 1;
    }
    fclose(maps);
    return found;
}

/* DRA_GPU_SIM_ROOT, or the directory above the driver root that this file lies in. */
static int find_root(char *to) {
    const char *from_environment = getenv("DRA_GPU_SIM_ROOT");
    char path[PATH_MAX], real[PATH_MAX], probe[PATH_MAX + 16];
    if (from_environment && *from_environment) {
        snprintf(to, PATH_MAX, "%s", from_environment);
        return 1;
    }
    if (!own_path(path, sizeof path) || !realpath(path, real)) return 0;
    for (char *end = strrchr(real, '/'); end && end > real; end = strrchr(real, '/')) {
        *end = 0;
        snprintf(probe, sizeof probe, "%s/state", real);
        size_t length = strlen(real);
        if (length > 7 && !strcmp(real + length - 7, "/driver")) continue;
        if (access(probe, F_OK) == 0) {
            snprintf(to, PATH_MAX, "%s", real);
            return 1;
        }
    }
    return 0;
}

static void find_dev(void) {
    const char *from_environment = getenv("DRA_GPU_SIM_DEV");
    if (from_environment && *from_environment) {
        snprintf(dev, sizeof dev, "%s", from_environment);
        return;
    }
    if (snprintf(dev, sizeof dev, "%s/dev", root) >= (int)sizeof dev || access(dev, F_OK) != 0) strcpy(dev, "/dev");
}

static void after_fork(void) {
    pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;
    memcpy(&process_lock, &fresh, sizeof fresh);
}

static nvmlReturn_t attach(void) {
    char path[PATH_MAX + 16], where[PATH_MAX];
    struct stat info;
    static int fork_handler;
    if (!find_root(where)) return NVML_ERROR_DRIVER_NOT_LOADED;
    snprintf(path, sizeof path, "%s/state", where);
    if (stat(path, &info) != 0) return NVML_ERROR_DRIVER_NOT_LOADED;
    if (state && info.st_ino == state_inode && !strcmp(where, root) && opened_by == getpid()) {
        find_dev();
        return NVML_SUCCESS;
    }
    int writable = 1, fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) {
        writable = 0;
        fd = open(path, O_RDONLY | O_CLOEXEC);
    }
    if (fd < 0) return errno == EACCES ? NVML_ERROR_NO_PERMISSION : NVML_ERROR_DRIVER_NOT_LOADED;
    if (info.st_size < (off_t)sizeof(struct sim_state)) {
        close(fd);
        return NVML_ERROR_LIB_RM_VERSION_MISMATCH;
    }
    /* A state that may only be read is mapped privately: queries work, what would be written stays in this process. */
    struct sim_state *mapped =
        mmap(NULL, sizeof *mapped, PROT_READ | PROT_WRITE, writable ? MAP_SHARED : MAP_PRIVATE, fd, 0);
    if (mapped == MAP_FAILED) {
        close(fd);
        return NVML_ERROR_MEMORY;
    }
    if (mapped->magic != SIM_MAGIC || mapped->layout_version != SIM_LAYOUT_VERSION || mapped->size != sizeof *mapped) {
        munmap(mapped, sizeof *mapped);
        close(fd);
        return NVML_ERROR_LIB_RM_VERSION_MISMATCH;
    }
    if (state_fd >= 0) close(state_fd); /* the old mapping stays: another thread may still be reading it */
    if (log_fd >= 0) close(log_fd);
    state = mapped;
    state_fd = fd;
    state_inode = info.st_ino;
    opened_by = getpid();
    strcpy(root, where);
    find_dev();
    snprintf(path, sizeof path, "%s/calls.log", root);
    log_fd = open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
    if (!fork_handler) pthread_atfork(NULL, NULL, after_fork);
    fork_handler = 1;
    return NVML_SUCCESS;
}

nvmlReturn_t sim_attach(void) {
    pthread_mutex_lock(&process_lock);
    nvmlReturn_t result = attach();
    pthread_mutex_unlock(&process_lock);
    return result;
}

/* A child of fork shares its parent's open file, and so its flock: it needs a file of its own. */
static void own_file(void) {
    char path[PATH_MAX + 16];
    if (opened_by == getpid()) return;
    snprintf(path, sizeof path, "%s/state", root);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) fd = open(path, O_RDONLY | O_CLOEXEC);
    state_fd = fd;
    opened_by = getpid();
}

void sim_lock(void) {
    pthread_mutex_lock(&process_lock);
    own_file();
    while (state_fd >= 0 && flock(state_fd, LOCK_EX) != 0 && errno == EINTR) {}
}

void sim_unlock(void) {
    if (state_fd >= 0) flock(state_fd, LOCK_UN);
    pthread_mutex_unlock(&process_lock);
}

long sim_now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000L + now.tv_nsec / 1000000L;
}

void sim_futex_wake(u32 *word) {
    __atomic_fetch_add(word, 1, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void sim_futex_wait(u32 *word, u32 value, long timeout_ms) {
    struct timespec limit = {timeout_ms / 1000, (timeout_ms % 1000) * 1000000L};
    syscall(SYS_futex, word, FUTEX_WAIT, value, &limit, NULL, 0);
}

void sim_detail(struct ctx *c, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(c->detail, sizeof c->detail, format, arguments);
    va_end(arguments);
}

nvmlReturn_t sim_copy(char *to, u32 length, const char *text) {
    size_t need = strlen(text) + 1;
    if (length < need) return NVML_ERROR_INSUFFICIENT_SIZE;
    memcpy(to, text, need);
    return NVML_SUCCESS;
}

static void begin(struct ctx *c, const char *call) {
    memset(c, 0, sizeof *c);
    c->call = call;
    c->index = -1;
    c->s = state;
}

static void lock_into(struct ctx *c) {
    sim_lock();
    c->locked = 1;
}

nvmlReturn_t sim_init(struct ctx *c, const char *call, u32 flags) {
    begin(c, call);
    nvmlReturn_t result = sim_attach();
    if (result != NVML_SUCCESS) return result;
    c->s = state;
    lock_into(c);
    result = sim_faults(c);
    if (result != NVML_SUCCESS) return result;
    if (references++ == 0) {
        char path[PATH_MAX + 16];
        snprintf(path, sizeof path, "%s/nvidiactl", dev);
        if (access(path, F_OK) != 0) result = NVML_ERROR_DRIVER_NOT_LOADED;
        else if (access(path, R_OK | W_OK) != 0) result = NVML_ERROR_NO_PERMISSION;
        if (result != NVML_SUCCESS) {
            references--;
            return result;
        }
        sim_scan(c->s);
        if (!(flags & NVML_INIT_NO_ATTACH)) sim_session_open(c->s);
    }
    return NVML_SUCCESS;
}

nvmlReturn_t sim_program(struct ctx *c, const char *call, int gpu) {
    begin(c, call);
    nvmlReturn_t result = sim_attach();
    if (result != NVML_SUCCESS) return result;
    c->s = state;
    c->index = gpu;
    lock_into(c);
    return sim_faults(c);
}

nvmlReturn_t sim_shutdown(struct ctx *c, const char *call) {
    nvmlReturn_t result = sim_enter(c, call);
    if (result != NVML_SUCCESS) return result;
    if (--references == 0) sim_session_close(c->s);
    return NVML_SUCCESS;
}

nvmlReturn_t sim_begin(struct ctx *c, const char *call) {
    begin(c, call);
    if (!references) {
        c->s = NULL; /* nothing is known yet, so nothing is logged */
        return NVML_ERROR_UNINITIALIZED;
    }
    lock_into(c);
    return NVML_SUCCESS;
}

nvmlReturn_t sim_enter(struct ctx *c, const char *call) {
    nvmlReturn_t result = sim_begin(c, call);
    return result == NVML_SUCCESS ? sim_faults(c) : result;
}

nvmlReturn_t sim_enter_handle(struct ctx *c, const char *call, const void *handle, u32 kinds) {
    nvmlReturn_t result = sim_begin(c, call);
    if (result == NVML_SUCCESS) result = sim_resolve(c, handle, kinds);
    if (result != NVML_SUCCESS) return result;
    result = sim_faults(c);
    /* A fault may have held the call: what it found then may be gone now. */
    return result != NVML_SUCCESS ? result : sim_resolve(c, handle, kinds);
}

static void log_call(const struct ctx *c, nvmlReturn_t result) {
    struct timespec now;
    char line[512], gpu[16] = "-";
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (c->index >= 0) snprintf(gpu, sizeof gpu, "%d", c->index);
    int length = snprintf(line, sizeof line, "%ld.%09ld\t%d\t%s\t%s\t%d\t%s\n", (long)now.tv_sec, now.tv_nsec,
                          (int)getpid(), c->call, gpu, result, c->detail);
    if (length > (int)sizeof line - 1) {
        length = (int)sizeof line - 1;
        line[length - 1] = '\n';
    }
    if (log_fd >= 0 && write(log_fd, line, (size_t)length) < 0) return; /* a lost line is not worth a failed call */
}

nvmlReturn_t sim_leave(struct ctx *c, nvmlReturn_t result) {
    if (c->locked) sim_unlock();
    c->locked = 0;
    if (c->s && c->s->log_calls) log_call(c, result);
    return result;
}
