/* Starting the shipper from inside a server that must not notice.
 *
 * The server may have handlers for SIGCHLD, threads that hold locks, and descriptors without
 * close-on-exec. So neither fork() nor posix_spawn() will do: a helper process is cloned with
 * the memory shared and this thread suspended (as by vfork), with no signal at its end; it
 * clones the program in the same way and leaves, so that the program is nobody's child here.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "host.h"

#ifndef SYS_close_range
#define SYS_close_range 436 /* glibc before 2.32 has no name for it */
#endif

enum { STACK_SIZE = 64 * 1024 };

/* Of a function that runs on such a stack, which the address sanitizer would not know. */
#define ON_STACK_OF_OURS __attribute__((no_sanitize("address")))

struct plan {
    const char *program;
    char *const *arguments;
    char *const *environment;
    sigset_t signals; /* of the thread, while it starts a program */
    char *stack;      /* for the program's process, before it becomes the program */
    int result;       /* process number, or -errno; shared memory */
};

/* Returns 0 or -errno. */
ON_STACK_OF_OURS static int only_standard_descriptors(void) {
    if (syscall(SYS_close_range, 3u, ~0u, 0) != 0) {
        long most = sysconf(_SC_OPEN_MAX); /* a kernel before 5.9 */
        for (int fd = 3; fd < most; fd++)
            close(fd);
    }
    int null = open("/dev/null", O_RDWR); /* only now: the server may have none left */
    if (null < 0)
        return -errno;
    for (int fd = 0; fd < 3; fd++)
        dup2(null, fd);
    if (null > 2)
        close(null);
    return 0;
}

ON_STACK_OF_OURS static int become_program(void *argument) {
    struct plan *plan = argument;
    setsid();
    for (int number = 1; number < NSIG; number++)
        signal(number, SIG_DFL); /* without CLONE_SIGHAND these are this process's own */
    if (chdir("/") != 0)         /* else it would keep the server's folder from being unmounted */
        _exit(127);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    execve(plan->program, plan->arguments, plan->environment);
    plan->result = -errno;
    _exit(127);
}

ON_STACK_OF_OURS static int start_and_leave(void *argument) {
    struct plan *plan = argument;
    plan->result = only_standard_descriptors(); /* a server that dies now leaves nothing locked */
    if (plan->result != 0)
        _exit(0);
    int process =
        clone(become_program, plan->stack + STACK_SIZE, CLONE_VM | CLONE_VFORK | SIGCHLD, plan);
    if (process < 0)
        plan->result = -errno;
    else if (plan->result == 0)
        plan->result = process;
    _exit(0);
}

int fbc_spawn(const char *program, char *const arguments[], char *const environment[]) {
    struct plan plan = {.program = program, .arguments = arguments, .environment = environment};
    char *stacks = mmap(NULL, 2 * STACK_SIZE, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
    if (stacks == MAP_FAILED)
        return -errno;
    plan.stack = stacks;

    sigset_t all;
    int cancel;
    sigfillset(&all);
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
    pthread_sigmask(SIG_SETMASK, &all, &plan.signals); /* no handler of the server runs in ours */
    int helper = clone(start_and_leave, stacks + 2 * STACK_SIZE, CLONE_VM | CLONE_VFORK, &plan);
    if (helper < 0)
        plan.result = -errno;
    else
        while (waitpid(helper, NULL, __WCLONE) < 0 && errno == EINTR)
            ;
    pthread_sigmask(SIG_SETMASK, &plan.signals, NULL);
    pthread_setcancelstate(cancel, NULL);
    munmap(stacks, 2 * STACK_SIZE);
    return plan.result;
}
