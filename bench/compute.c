/* A neighbour that computes: one thread for each core, for so many seconds. Prints JSON: rounds of all threads in a second, and the longest that one stood still. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define ROUND 2000 /* steps between two looks at the clock: some microseconds */
#define THREADS_MAX 1024

struct worker {
    double seconds, longest, rounds;
};

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static void *work(void *argument) {
    struct worker *worker = argument;
    volatile uint64_t value = 1;
    double start = now(), before = start, time = start;
    while (time - start < worker->seconds) {
        for (int step = 0; step < ROUND; step++)
            value = value * 6364136223846793005u + 1442695040888963407u;
        time = now();
        if (time - before > worker->longest)
            worker->longest = time - before;
        before = time;
        worker->rounds++;
    }
    return NULL;
}

int main(int count, char **words) {
    double seconds = count == 2 ? atof(words[1]) : 0;
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    static pthread_t threads[THREADS_MAX];
    static struct worker workers[THREADS_MAX];
    if (seconds <= 0 || cores < 1 || cores > THREADS_MAX) {
        fprintf(stderr, "usage: compute SECONDS\n");
        return 2;
    }
    for (long at = 0; at < cores; at++) {
        workers[at].seconds = seconds;
        if (pthread_create(&threads[at], NULL, work, &workers[at])) {
            perror("compute: no thread");
            return 1;
        }
    }
    double rounds = 0, longest = 0;
    for (long at = 0; at < cores; at++) {
        pthread_join(threads[at], NULL);
        rounds += workers[at].rounds;
        if (workers[at].longest > longest)
            longest = workers[at].longest;
    }
    printf("{\"rounds_per_second\": %.1f, \"longest_seconds\": %.6f}\n", rounds / seconds, longest);
    return 0;
}
