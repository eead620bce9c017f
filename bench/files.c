/* Creates, looks at and unlinks many files in one directory, one after another, and prints how many of each it does in a second. Between the
 * phases it pauses, so that attributes and names which a client keeps for a time have expired.
 *
 * files DIRECTORY COUNT PAUSE_MS
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static void create_one(const char *name) {
    int fd = open(name, O_CREAT | O_EXCL | O_WRONLY, 0644);
    if (fd < 0 || close(fd) != 0) {
        fprintf(stderr, "create %s: %s\n", name, strerror(errno));
        exit(1);
    }
}

static void stat_one(const char *name) {
    struct stat status;
    if (stat(name, &status) != 0) {
        fprintf(stderr, "stat %s: %s\n", name, strerror(errno));
        exit(1);
    }
}

static void unlink_one(const char *name) {
    if (unlink(name) != 0) {
        fprintf(stderr, "unlink %s: %s\n", name, strerror(errno));
        exit(1);
    }
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static void phase(const char *what, void (*one)(const char *), long count) {
    char name[32];
    double start = now();
    for (long i = 0; i < count; i++) {
        snprintf(name, sizeof name, "file-%06ld", i);
        one(name);
    }
    printf("%s %.0f\n", what, count / (now() - start));
}

int main(int argc, char **argv) {
    if (argc != 4 || chdir(argv[1]) != 0) {
        fprintf(stderr, "usage: files DIRECTORY COUNT PAUSE_MS (the directory must be there)\n");
        return 2;
    }
    long count = atol(argv[2]);
    useconds_t pause = (useconds_t)atol(argv[3]) * 1000;
    phase("create", create_one, count);
    usleep(pause);
    phase("stat", stat_one, count);
    usleep(pause);
    phase("unlink", unlink_one, count);
    return 0;
}
