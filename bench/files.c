/* Creates, looks at, lists or unlinks many files in one directory, one after another, and prints how many it does in a second.
 *
 * files DIRECTORY create|stat|readdir|unlink COUNT
 */
#include <dirent.h>
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

static void each(void (*one)(const char *), long count) {
    char name[32];
    for (long i = 0; i < count; i++) {
        snprintf(name, sizeof name, "file-%06ld", i);
        one(name);
    }
}

/* Names alone, as `ls -f` reads them. */
static void list(long count) {
    DIR *folder = opendir(".");
    long found = 0;
    if (folder == NULL) {
        fprintf(stderr, "opendir: %s\n", strerror(errno));
        exit(1);
    }
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) found += strncmp(entry->d_name, "file-", 5) == 0;
    closedir(folder);
    if (found != count) {
        fprintf(stderr, "readdir: %ld files, not %ld\n", found, count);
        exit(1);
    }
}

int main(int argc, char **argv) {
    if (argc != 4 || chdir(argv[1]) != 0) {
        fprintf(stderr, "usage: files DIRECTORY create|stat|readdir|unlink COUNT (the directory must be there)\n");
        return 2;
    }
    long count = atol(argv[3]);
    double start = now();
    if (strcmp(argv[2], "create") == 0) each(create_one, count);
    else if (strcmp(argv[2], "stat") == 0) each(stat_one, count);
    else if (strcmp(argv[2], "readdir") == 0) list(count);
    else if (strcmp(argv[2], "unlink") == 0) each(unlink_one, count);
    else {
        fprintf(stderr, "files: cannot %s\n", argv[2]);
        return 2;
    }
    printf("%.1f\n", count / (now() - start));
    return 0;
}
