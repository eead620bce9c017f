/* Loads an NFS server by libnfs, a client in user space, with no mount: the workloads that aqueduct-load and fio have too.
 *
 * nfs_load io URL --name FILE --op read|write|randread|randwrite --block BYTES --size BYTES --jobs N --depth D [--seconds S] [--shared]
 *     N jobs, each a thread with a connection of its own and D requests under way; each has a file FILE.n of size/N, with --shared its part of FILE.
 *     Writes end with fsync. Prints one line of JSON.
 * nfs_load names URL --name FOLDER --op create|stat|readdir|unlink --count N
 *     Makes, looks at, lists or unlinks N files one after another, and prints how many it does in a second, as files.c does.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <sys/time.h> /* libnfs.h needs it */

#include <nfsc/libnfs.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { JOBS_MAX = 64, DEPTH_MAX = 256, NAME_MAX_BYTES = 512 };

static struct {
    const char *url, *name, *op;
    uint64_t block, size;
    int jobs, depth, shared;
    double seconds; /* 0: until all is done */
    long count;
} options = {.block = 1 << 20, .jobs = 1, .depth = 1};

struct job {
    pthread_t thread;
    int number;
    struct nfs_context *nfs;
    struct nfsfh *file;
    char *data;               /* what is written */
    uint64_t base, blocks;    /* its part of the file: where it begins, and how many blocks it has */
    uint64_t issued, random;  /* blocks asked for so far; the state of the generator */
    uint64_t bytes, operations;
    int under_way;
    double begin, end; /* when it began; no more requests after this */
};

struct request {
    struct job *job;
    uint64_t offset, left;
};

static pthread_barrier_t start;

static void fail(const char *form, ...) {
    va_list values;
    va_start(values, form);
    fputs("nfs_load: ", stderr);
    vfprintf(stderr, form, values);
    fputc('\n', stderr);
    exit(1);
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static int is_write(void) { return strstr(options.op, "write") != NULL; }
static int is_random(void) { return strncmp(options.op, "rand", 4) == 0; }

static struct nfs_context *connect_to(const char *text) {
    struct nfs_context *nfs = nfs_init_context();
    if (nfs == NULL) fail("no memory for a connection");
    struct nfs_url *url = nfs_parse_url_dir(nfs, text);
    if (url == NULL) fail("the address %s: %s", text, nfs_get_error(nfs));
    if (nfs_mount(nfs, url->server, url->path) != 0) fail("mounting %s: %s", text, nfs_get_error(nfs));
    nfs_destroy_url(url);
    return nfs;
}

static void issue(struct job *job);
static void ask(struct request *request);

static void answered(int status, struct nfs_context *nfs, void *data, void *private) {
    struct request *request = private;
    struct job *job = request->job;
    (void)data;
    if (status <= 0) fail("%s at %llu: %s", options.op, (unsigned long long)request->offset, status == 0 ? "end of file" : nfs_get_error(nfs));
    job->bytes += status;
    request->offset += status;
    request->left -= status;
    if (request->left > 0) { /* the server takes less at a time */
        ask(request);
        return;
    }
    job->operations++;
    job->under_way--;
    free(request);
    issue(job);
}

static void ask(struct request *request) {
    struct job *job = request->job;
    int status = is_write() ? nfs_pwrite_async(job->nfs, job->file, request->offset, request->left, job->data, answered, request)
                            : nfs_pread_async(job->nfs, job->file, request->offset, request->left, answered, request);
    if (status != 0) fail("%s: %s", options.op, nfs_get_error(job->nfs));
}

/* Asks for the next block, unless there is none left or the time is over. */
static void issue(struct job *job) {
    if (job->issued == job->blocks || (options.seconds > 0 && now() > job->end)) return;
    uint64_t block = job->issued++;
    if (is_random()) {
        job->random = job->random * 6364136223846793005u + 1442695040888963407u;
        block = (job->random >> 33) % job->blocks;
    }
    struct request *request = malloc(sizeof *request);
    if (request == NULL) fail("no memory for a request");
    *request = (struct request){job, job->base + block * options.block, options.block};
    job->under_way++;
    ask(request);
}

static void *run_job(void *private) {
    struct job *job = private;
    char name[NAME_MAX_BYTES];
    snprintf(name, sizeof name, options.shared ? "/%s" : "/%s.%d", options.name, job->number);
    job->nfs = connect_to(options.url);
    job->data = calloc(1, options.block);
    if (job->data == NULL) fail("no memory for a block");
    memset(job->data, 0x5a, options.block);
    /* Only writing from the beginning makes the file. */
    int made = strcmp(options.op, "write") == 0 && (!options.shared || job->number == 0);
    if (made && nfs_open2(job->nfs, name, O_CREAT | O_RDWR, 0644, &job->file) != 0) fail("making %s: %s", name, nfs_get_error(job->nfs));
    pthread_barrier_wait(&start);
    if (!made && nfs_open(job->nfs, name, is_write() ? O_RDWR : O_RDONLY, &job->file) != 0) fail("opening %s: %s", name, nfs_get_error(job->nfs));
    pthread_barrier_wait(&start);
    job->begin = now();
    job->end = job->begin + options.seconds;
    for (int i = 0; i < options.depth; i++) issue(job);
    while (job->under_way > 0) {
        struct pollfd poller = {.fd = nfs_get_fd(job->nfs), .events = nfs_which_events(job->nfs)};
        if (poll(&poller, 1, -1) < 0) fail("poll: %s", strerror(errno));
        if (nfs_service(job->nfs, poller.revents) < 0) fail("%s: %s", options.op, nfs_get_error(job->nfs));
    }
    if (is_write() && nfs_fsync(job->nfs, job->file) != 0) fail("fsync of %s: %s", name, nfs_get_error(job->nfs));
    return NULL;
}

static long memory_peak_kib(void) {
    char line[256];
    long found = 0;
    FILE *status = fopen("/proc/self/status", "r");
    while (status != NULL && fgets(line, sizeof line, status) != NULL && sscanf(line, "VmHWM: %ld", &found) != 1) continue;
    if (status != NULL) fclose(status);
    return found;
}

static void measure_io(void) {
    static struct job jobs[JOBS_MAX];
    if (options.jobs < 1 || options.jobs > JOBS_MAX || options.depth < 1 || options.depth > DEPTH_MAX || options.block == 0)
        fail("jobs are 1 to %d, depths 1 to %d, and blocks not empty", JOBS_MAX, DEPTH_MAX);
    pthread_barrier_init(&start, NULL, options.jobs + 1);
    uint64_t each = options.size / options.jobs;
    for (int i = 0; i < options.jobs; i++) {
        jobs[i] = (struct job){.number = i, .blocks = each / options.block, .random = i + 1, .base = options.shared ? i * each : 0};
        if (jobs[i].blocks == 0) fail("a job has less than one block");
        if (pthread_create(&jobs[i].thread, NULL, run_job, &jobs[i]) != 0) fail("no thread for job %d", i);
    }
    pthread_barrier_wait(&start); /* files are made */
    pthread_barrier_wait(&start); /* and opened */
    /* Jobs may be at work long before this thread runs again: the first of them says when that was. */
    double begin = now();
    uint64_t bytes = 0, operations = 0;
    for (int i = 0; i < options.jobs; i++) {
        pthread_join(jobs[i].thread, NULL);
        if (jobs[i].begin < begin) begin = jobs[i].begin;
        bytes += jobs[i].bytes;
        operations += jobs[i].operations;
    }
    double seconds = now() - begin;
    struct rusage used; /* but for memory, where the kernel counts whoever started us */
    getrusage(RUSAGE_SELF, &used);
    double cpu = used.ru_utime.tv_sec + used.ru_stime.tv_sec + (used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
    printf("{\"op\":\"%s\",\"jobs\":%d,\"depth\":%d,\"bytes\":%llu,\"operations\":%llu,\"seconds\":%.6f,\"cpu_seconds\":%.6f,\"memory_peak_kib\":%ld}\n", options.op,
           options.jobs, options.depth, (unsigned long long)bytes, (unsigned long long)operations, seconds, cpu, memory_peak_kib());
}

static void create_one(struct nfs_context *nfs, const char *name) {
    struct nfsfh *file;
    if (nfs_open2(nfs, name, O_CREAT | O_EXCL | O_WRONLY, 0644, &file) != 0 || nfs_close(nfs, file) != 0) fail("create %s: %s", name, nfs_get_error(nfs));
}

static void stat_one(struct nfs_context *nfs, const char *name) {
    struct nfs_stat_64 status;
    if (nfs_stat64(nfs, name, &status) != 0) fail("stat %s: %s", name, nfs_get_error(nfs));
}

static void unlink_one(struct nfs_context *nfs, const char *name) {
    if (nfs_unlink(nfs, name) != 0) fail("unlink %s: %s", name, nfs_get_error(nfs));
}

static void each(void (*one)(struct nfs_context *, const char *), struct nfs_context *nfs) {
    char name[NAME_MAX_BYTES];
    for (long i = 0; i < options.count; i++) {
        snprintf(name, sizeof name, "/%s/file-%06ld", options.name, i);
        one(nfs, name);
    }
}

static void list_all(struct nfs_context *nfs) {
    char name[NAME_MAX_BYTES];
    struct nfsdir *folder;
    long found = 0;
    snprintf(name, sizeof name, "/%s", options.name);
    if (nfs_opendir(nfs, name, &folder) != 0) fail("listing %s: %s", name, nfs_get_error(nfs));
    for (struct nfsdirent *entry; (entry = nfs_readdir(nfs, folder)) != NULL;) found += strncmp(entry->name, "file-", 5) == 0;
    nfs_closedir(nfs, folder);
    if (found != options.count) fail("%s has %ld files, not %ld", name, found, options.count);
}

static void measure_names(void) {
    struct nfs_context *nfs = connect_to(options.url);
    nfs_set_dircache(nfs, 0);
    double begin = now();
    if (strcmp(options.op, "create") == 0) each(create_one, nfs);
    else if (strcmp(options.op, "stat") == 0) each(stat_one, nfs);
    else if (strcmp(options.op, "readdir") == 0) list_all(nfs);
    else if (strcmp(options.op, "unlink") == 0) each(unlink_one, nfs);
    else fail("cannot %s", options.op);
    printf("%.1f\n", options.count / (now() - begin));
}

int main(int argc, char **argv) {
    static const struct option known[] = {{"name", 1, NULL, 'n'},  {"op", 1, NULL, 'o'},      {"block", 1, NULL, 'b'},  {"size", 1, NULL, 's'},
                                          {"jobs", 1, NULL, 'j'},  {"depth", 1, NULL, 'd'},   {"seconds", 1, NULL, 't'}, {"shared", 0, NULL, 'x'},
                                          {"count", 1, NULL, 'c'}, {"pause", 1, NULL, 'p'},   {0}};
    int wrong = argc < 3;
    for (int found; !wrong && (found = getopt_long(argc, argv, "", known, NULL)) != -1;) {
        switch (found) {
        case 'n': options.name = optarg; break;
        case 'o': options.op = optarg; break;
        case 'b': options.block = strtoull(optarg, NULL, 10); break;
        case 's': options.size = strtoull(optarg, NULL, 10); break;
        case 'j': options.jobs = atoi(optarg); break;
        case 'd': options.depth = atoi(optarg); break;
        case 't': options.seconds = atof(optarg); break;
        case 'x': options.shared = 1; break;
        case 'c': options.count = atol(optarg); break;
        default: wrong = 1;
        }
    }
    int io = !wrong && optind + 2 == argc && strcmp(argv[optind], "io") == 0;
    int names = !wrong && optind + 2 == argc && strcmp(argv[optind], "names") == 0 && options.count > 0;
    if ((!io && !names) || options.name == NULL || options.op == NULL) {
        fprintf(stderr, "usage: nfs_load io|names URL --name NAME ... (see the source)\n");
        return 2;
    }
    options.url = argv[optind + 1];
    if (io) measure_io();
    else measure_names();
    return 0;
}
