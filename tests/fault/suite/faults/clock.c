/* Stands between a process and its wall clock: adds the seconds found in the file CLOCK_OFFSET (a double) to what
 * clock_gettime(CLOCK_REALTIME), gettimeofday and time say. Other clocks are left alone. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile const double *offset;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("CLOCK_OFFSET");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd >= 0) {
        void *found = mmap(NULL, sizeof(double), PROT_READ, MAP_SHARED, fd, 0);
        if (found != MAP_FAILED) offset = found;
        close(fd);
    }
}

int clock_gettime(clockid_t id, struct timespec *t) {
    int rc = (int)syscall(SYS_clock_gettime, id, t);
    if (rc == 0 && offset && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) t->tv_sec += (time_t)*offset;
    return rc;
}

int gettimeofday(struct timeval *restrict t, void *restrict zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    t->tv_sec = now.tv_sec;
    t->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *t) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (t) *t = now.tv_sec;
    return now.tv_sec;
}
