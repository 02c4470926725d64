/* Preloaded into memcached: delays its workers after they have passed an object to another
   thread, as an overloaded machine would. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void be_late(unsigned one_in) {
    static _Thread_local unsigned calls;
    char name[16] = "";
    const struct timespec late = {.tv_nsec = 20 * 1000 * 1000};
    if (++calls % one_in == 0 && pthread_getname_np(pthread_self(), name, sizeof(name)) == 0
        && strcmp(name, "mc-worker") == 0)
        nanosleep(&late, NULL);
}

int pthread_mutex_unlock(pthread_mutex_t *mutex) {
    static int (*unlock)(pthread_mutex_t *);
    if (unlock == NULL)
        unlock = (int (*)(pthread_mutex_t *))dlsym(RTLD_NEXT, "pthread_mutex_unlock");
    const int result = unlock(mutex);
    be_late(199);
    return result;
}

int fcntl(int fd, int command, ...) {
    static int (*real)(int, int, ...);
    if (real == NULL)
        real = (int (*)(int, int, ...))dlsym(RTLD_NEXT, "fcntl");
    va_list arguments;
    va_start(arguments, command);
    void *argument = va_arg(arguments, void *);
    va_end(arguments);
    const int result = real(fd, command, argument);
    be_late(1);
    return result;
}
