/* First process of a machine and of a Pod. It does nothing, reaps orphaned processes and ends at SIGTERM. */
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static void end(int number) {
    (void)number;
    _exit(0);
}

static void reap(int number) {
    (void)number;
    while (waitpid(-1, NULL, WNOHANG) > 0) {
    }
}

int main(void) {
    struct sigaction on_end = {.sa_handler = end}, on_child = {.sa_handler = reap};
    sigaction(SIGINT, &on_end, NULL);
    sigaction(SIGTERM, &on_end, NULL);
    sigaction(SIGCHLD, &on_child, NULL);
    for (;;) {
        pause();
    }
}
