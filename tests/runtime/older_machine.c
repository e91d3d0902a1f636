/* Makes a keeper see another machine than this one, as a preloaded library: one that lets no ordinary user have a user
 * namespace, and, with OLDER_LANDLOCK, a Landlock of that version. All else is the same as on the machine. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <sched.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { ASKS_FOR_VERSION = 1, ASKS_FOR_ERRATA = 2 };

long syscall(long number, ...) {
    long (*real)(long, ...) = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
    long words[6];
    va_list rest;
    va_start(rest, number);
    for (int at = 0; at < 6; at++) words[at] = va_arg(rest, long);
    va_end(rest);
    const char *version = getenv("OLDER_LANDLOCK");
    if (number == SYS_clone && (words[0] & CLONE_NEWUSER)) {
        errno = EPERM;
        return -1;
    }
    if (number == SYS_landlock_create_ruleset && version && words[2] == ASKS_FOR_VERSION) return atol(version);
    if (number == SYS_landlock_create_ruleset && version && words[2] == ASKS_FOR_ERRATA) {
        errno = EOPNOTSUPP;
        return -1;
    }
    return real(number, words[0], words[1], words[2], words[3], words[4], words[5]);
}
