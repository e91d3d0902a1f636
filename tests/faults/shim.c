/* Preloaded library for the fault tests. It intercepts calls of the journal, of the run folders and of the clock.
 * A shared control file holds rules of the test, which stall, fail, tear or kill at a call. Each call of the journal is
 * recorded. shim.py has the same layout, and only shim.py writes rules.
 *
 *   FAULTS_CONTROL  control file of the test
 *   FAULTS_FOLDER   only calls on files below this folder are changed (clock shifts apply everywhere)
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

/* MAKE: open with O_CREAT. ASK: a write to another file. Its bytes begin with a path below the folder.
 * REMOVE: unlink and rmdir with a whole path. */
enum kind { PWRITE, FDATASYNC, FSYNC, RENAME, FALLOCATE, MKDIR, MAKE, WRITE, ASK, REMOVE };
enum action { NOTHING, STALL, FAIL, KILL_BEFORE, KILL_AFTER, TEAR };
enum { RULES = 16, STEPS = 65536, NAME = 64 };

struct rule {
    _Atomic uint32_t armed; /* written last, so that no process reads half a rule */
    uint32_t kinds;         /* one bit per kind */
    uint64_t first, last;   /* range of matching calls, counted from 1, inclusive */
    uint32_t action;
    int32_t argument;           /* FAIL: errno. TEAR: number of written bytes */
    _Atomic uint32_t waiting;   /* stalled calls */
    _Atomic uint64_t matched;   /* matching calls */
    _Atomic uint64_t hits;    /* calls that the rule changed */
    char names[NAME];           /* pattern of the name below the folder */
};

struct step {
    _Atomic uint32_t kind; /* kind + 1, or 0 while the entry is not complete */
    uint32_t pid;
    uint64_t offset, length;
    char name[NAME];
};

struct control {
    uint64_t magic;
    _Atomic int64_t wall_shift_ns, boot_shift_ns;
    _Atomic uint64_t step_count;
    struct rule rules[RULES];
    struct step steps[STEPS];
};

static const uint64_t MAGIC = 0x4641554c54530002;
static struct control *control;
static char folder[PATH_MAX];
static size_t folder_length;

static ssize_t (*real_pwrite)(int, const void *, size_t, off_t), (*real_write)(int, const void *, size_t);
static int (*real_fdatasync)(int), (*real_fsync)(int);
static int (*real_rename)(const char *, const char *);
static int (*real_fallocate)(int, int, off_t, off_t);
static int (*real_open)(const char *, int, ...), (*real_mkdir)(const char *, mode_t);
static int (*real_unlink)(const char *), (*real_rmdir)(const char *);
static int (*real_clock_gettime)(clockid_t, struct timespec *);
static int (*real_execve)(const char *, char *const *, char *const *), (*real_execvp)(const char *, char *const *);

static const char *const VARIABLES[] = {"LD_PRELOAD", "FAULTS_CONTROL", "FAULTS_FOLDER"};
static char variables[3][PATH_MAX + 16]; /* NAME=VALUE, for programs that are started without them */

static void *next(const char *name) {
    void *found = dlsym(RTLD_NEXT, name);
    if (found == NULL) abort();
    return found;
}

static void resolve(void) {
    real_clock_gettime = next("clock_gettime");
    real_pwrite = next("pwrite");
    real_fdatasync = next("fdatasync");
    real_fsync = next("fsync");
    real_rename = next("rename");
    real_fallocate = next("fallocate");
    real_write = next("write");
    real_open = next("open");
    real_mkdir = next("mkdir");
    real_unlink = next("unlink");
    real_rmdir = next("rmdir");
    real_execve = next("execve");
    real_execvp = next("execvp");
}

/* Exits, because a shim without effect would make every test pass. */
static void give_up(const char *why) {
    fprintf(stderr, "faults shim: %s\n", why);
    _exit(97);
}

__attribute__((constructor)) static void attach(void) {
    resolve();
    const char *path = getenv("FAULTS_CONTROL"), *below = getenv("FAULTS_FOLDER");
    if (path == NULL || below == NULL) give_up("FAULTS_CONTROL and FAULTS_FOLDER must be set");
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) give_up("the control file cannot be opened");
    struct control *mapped = mmap(NULL, sizeof *mapped, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (mapped == MAP_FAILED || mapped->magic != MAGIC) give_up("the control file is of another layout");
    folder_length = strlen(below);
    if (folder_length >= sizeof folder) give_up("FAULTS_FOLDER is too long");
    memcpy(folder, below, folder_length + 1);
    for (int i = 0; i < 3; i++) {
        const char *value = getenv(VARIABLES[i]);
        snprintf(variables[i], sizeof variables[i], "%s=%s", VARIABLES[i], value ? value : "");
    }
    control = mapped;
}

/* Returns the name below the folder: "" for the folder itself, NULL for other files. */
static const char *name_below(const char *path) {
    if (control == NULL || strncmp(path, folder, folder_length) != 0) return NULL;
    if (path[folder_length] == '\0') return path + folder_length;
    return path[folder_length] == '/' ? path + folder_length + 1 : NULL;
}

/* Not cached by descriptor, because descriptor numbers are reused. */
static const char *name_of(int fd, char *path) {
    char link[32];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    if (length < 0) return NULL;
    path[length] = '\0';
    return name_below(path);
}

static void record(enum kind kind, const char *name, uint64_t offset, uint64_t length) {
    if (kind > FALLOCATE) return;
    uint64_t number = atomic_fetch_add(&control->step_count, 1);
    if (number >= STEPS) return;
    struct step *step = &control->steps[number];
    step->pid = (uint32_t)getpid();
    step->offset = offset;
    step->length = length;
    snprintf(step->name, sizeof step->name, "%s", name);
    atomic_store(&step->kind, (uint32_t)kind + 1);
}

static void die(void) {
    kill(getpid(), SIGKILL);
    for (;;) pause();
}

static void stall(struct rule *rule) {
    const struct timespec pause_time = {.tv_nsec = 200000};
    atomic_fetch_add(&rule->waiting, 1);
    while (atomic_load(&rule->armed)) nanosleep(&pause_time, NULL);
    atomic_fetch_sub(&rule->waiting, 1);
}

/* Returns the rule for this call, or NULL. Waits for the end of a stall. A kill before the call does not return. */
static struct rule *meet(enum kind kind, const char *name, uint64_t offset, uint64_t length) {
    record(kind, name, offset, length);
    struct rule *striking = NULL;
    for (int i = 0; i < RULES; i++) {
        struct rule *rule = &control->rules[i];
        if (!atomic_load(&rule->armed) || !(rule->kinds & (1u << kind))) continue;
        if (fnmatch(rule->names, name, 0) != 0) continue;
        uint64_t number = atomic_fetch_add(&rule->matched, 1) + 1;
        if (number < rule->first || number > rule->last) continue;
        atomic_fetch_add(&rule->hits, 1);
        if (rule->action == STALL) stall(rule);
        else if (rule->action == KILL_BEFORE) die();
        else striking = rule;
    }
    return striking;
}

static int leave(const struct rule *rule, int result) {
    int error = errno;
    if (rule != NULL && rule->action == KILL_AFTER) die();
    errno = error;
    return result;
}

static int is_refused(const struct rule *rule) {
    if (rule == NULL || rule->action != FAIL) return 0;
    errno = rule->argument;
    return 1;
}

ssize_t pwrite(int fd, const void *bytes, size_t length, off_t offset) {
    char path[PATH_MAX];
    if (real_pwrite == NULL) resolve();
    const char *name = name_of(fd, path);
    if (name == NULL) return real_pwrite(fd, bytes, length, offset);
    const struct rule *rule = meet(PWRITE, name, (uint64_t)offset, length);
    if (is_refused(rule)) return -1;
    if (rule != NULL && rule->action == TEAR) {
        size_t part = (size_t)rule->argument < length ? (size_t)rule->argument : length;
        real_pwrite(fd, bytes, part, offset);
        die();
    }
    ssize_t written = real_pwrite(fd, bytes, length, offset);
    leave(rule, 0);
    return written;
}

ssize_t pwrite64(int fd, const void *bytes, size_t length, off64_t offset) {
    return pwrite(fd, bytes, length, offset);
}

static int sync_file(int fd, enum kind kind, int (*real)(int)) {
    char path[PATH_MAX];
    const char *name = name_of(fd, path);
    if (name == NULL) return real(fd);
    const struct rule *rule = meet(kind, name, 0, 0);
    return is_refused(rule) ? -1 : leave(rule, real(fd));
}

int fdatasync(int fd) {
    if (real_fdatasync == NULL) resolve();
    return sync_file(fd, FDATASYNC, real_fdatasync);
}

int fsync(int fd) {
    if (real_fsync == NULL) resolve();
    return sync_file(fd, FSYNC, real_fsync);
}

int rename(const char *from, const char *to) {
    if (real_rename == NULL) resolve();
    const char *name = name_below(to);
    if (name == NULL) return real_rename(from, to);
    const struct rule *rule = meet(RENAME, name, 0, 0);
    return is_refused(rule) ? -1 : leave(rule, real_rename(from, to));
}

int fallocate(int fd, int mode, off_t offset, off_t length) {
    char path[PATH_MAX];
    if (real_fallocate == NULL) resolve();
    const char *name = name_of(fd, path);
    if (name == NULL) return real_fallocate(fd, mode, offset, length);
    const struct rule *rule = meet(FALLOCATE, name, (uint64_t)offset, (uint64_t)length);
    return is_refused(rule) ? -1 : leave(rule, real_fallocate(fd, mode, offset, length));
}

int fallocate64(int fd, int mode, off64_t offset, off64_t length) { return fallocate(fd, mode, offset, length); }

static void shift(struct timespec *time, int64_t by_ns) {
    int64_t ns = (int64_t)time->tv_nsec + by_ns % 1000000000;
    time->tv_sec += by_ns / 1000000000 + (ns >= 1000000000) - (ns < 0);
    time->tv_nsec = ns >= 1000000000 ? ns - 1000000000 : ns < 0 ? ns + 1000000000 : ns;
}

int mkdir(const char *path, mode_t mode) {
    if (real_mkdir == NULL) resolve();
    const char *name = name_below(path);
    if (name == NULL) return real_mkdir(path, mode);
    const struct rule *rule = meet(MKDIR, name, 0, 0);
    return is_refused(rule) ? -1 : leave(rule, real_mkdir(path, mode));
}

static int remove_path(const char *path, int (*real)(const char *)) {
    const char *name = name_below(path);
    if (name == NULL) return real(path);
    const struct rule *rule = meet(REMOVE, name, 0, 0);
    return is_refused(rule) ? -1 : leave(rule, real(path));
}

int unlink(const char *path) {
    if (real_unlink == NULL) resolve();
    return remove_path(path, real_unlink);
}

int rmdir(const char *path) {
    if (real_rmdir == NULL) resolve();
    return remove_path(path, real_rmdir);
}

int open(const char *path, int flags, ...) {
    mode_t mode = 0;
    if (flags & (O_CREAT | O_TMPFILE)) {
        va_list more;
        va_start(more, flags);
        mode = va_arg(more, mode_t);
        va_end(more);
    }
    if (real_open == NULL) resolve();
    const char *name = (flags & O_CREAT) ? name_below(path) : NULL;
    if (name == NULL) return real_open(path, flags, mode);
    const struct rule *rule = meet(MAKE, name, 0, 0);
    return is_refused(rule) ? -1 : leave(rule, real_open(path, flags, mode));
}

int open64(const char *path, int flags, ...) {
    va_list more;
    va_start(more, flags);
    mode_t mode = (flags & (O_CREAT | O_TMPFILE)) ? va_arg(more, mode_t) : 0;
    va_end(more);
    return open(path, flags | O_LARGEFILE, mode);
}

/* Returns the path at the start of an ASK, up to its NUL. */
static const char *asked(const void *bytes, size_t length, char *path) {
    if (control == NULL || length <= folder_length || memcmp(bytes, folder, folder_length) != 0) return NULL;
    size_t end = strnlen(bytes, length < PATH_MAX ? length : PATH_MAX - 1);
    memcpy(path, bytes, end);
    path[end] = '\0';
    return name_below(path);
}

ssize_t write(int fd, const void *bytes, size_t length) {
    char path[PATH_MAX];
    if (real_write == NULL) resolve();
    enum kind kind = WRITE;
    const char *name = control == NULL ? NULL : name_of(fd, path);
    if (name == NULL) kind = ASK, name = asked(bytes, length, path);
    if (name == NULL) return real_write(fd, bytes, length);
    const struct rule *rule = meet(kind, name, 0, length);
    if (is_refused(rule)) return -1;
    if (rule != NULL && rule->action == TEAR) {
        real_write(fd, bytes, (size_t)rule->argument < length ? (size_t)rule->argument : length);
        die();
    }
    ssize_t written = real_write(fd, bytes, length);
    leave(rule, 0);
    return written;
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    if (real_clock_gettime == NULL) resolve();
    int result = real_clock_gettime(clock, time);
    if (result != 0 || control == NULL) return result;
    if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) shift(time, atomic_load(&control->wall_shift_ns));
    if (clock == CLOCK_BOOTTIME) shift(time, atomic_load(&control->boot_shift_ns));
    return 0;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone) {
    (void)zone;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    time->tv_sec = now.tv_sec;
    time->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *seconds) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (seconds != NULL) *seconds = now.tv_sec;
    return now.tv_sec;
}

/* Adds the variables of this library for a program that is started with an environment of its own. The entries of
 * `more` have room for them. */
static char *const *with_variables(char *const *environment, char **more) {
    if (control == NULL) return environment;
    size_t count = 0;
    for (; environment[count]; count++)
        if (strncmp(environment[count], "LD_PRELOAD=", 11) == 0) return environment;
    for (int i = 0; i < 3; i++) more[i] = variables[i];
    memcpy(more + 3, environment, (count + 1) * sizeof *more);
    return more;
}

static size_t length_of(char *const *environment) {
    size_t count = 0;
    while (environment[count]) count++;
    return count;
}

/* Returns the command of a build worker without its sandbox, which would hide the files of this library. Returns other
 * commands as they are. */
static char *const *without_sandbox(char *const *arguments) {
    if (control == NULL || !arguments[0] || !arguments[1]) return arguments;
    if (strcmp(arguments[1], "--build-sandbox") != 0) return arguments;
    char *const *word = arguments + 2;
    while (*word && strcmp(*word, "--") != 0) word++;
    return *word && word[1] ? word + 1 : arguments;
}

int execve(const char *path, char *const *arguments, char *const *environment) {
    char *more[length_of(environment) + 4];
    char *const *words = without_sandbox(arguments);
    return real_execve(words == arguments ? path : words[0], words, with_variables(environment, more));
}

/* The event loop of the service starts programs with this call. */
int execvp(const char *file, char *const *arguments) {
    char *more[length_of(environ) + 4];
    char *const *words = without_sandbox(arguments);
    environ = (char **)with_variables(environ, more);
    return real_execvp(words == arguments ? file : words[0], words);
}
