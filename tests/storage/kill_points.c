/* Kills its process at the n-th operation on files, in the middle of a write. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/types.h>
#include <unistd.h>

static long left = 0;

/* Operations until the end; 0 is none. */
void arm(long operations) { left = operations; }

static int is_end(void) { return left > 0 && --left == 0; }
static void end(void) { kill(getpid(), SIGKILL); }

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define ENDING(result, name, parameters, ...) \
    result name parameters { if (is_end()) end(); return REAL(name)(__VA_ARGS__); }
#define TORN(name, offset_type) \
    ssize_t name(int file, const void *data, size_t size, offset_type at) { \
        if (is_end()) { REAL(name)(file, data, size / 2, at); end(); } \
        return REAL(name)(file, data, size, at); }
#define OPENING(name) \
    int name(const char *path, int flags, ...) { \
        va_list more; va_start(more, flags); mode_t mode = va_arg(more, mode_t); va_end(more); \
        if (is_end()) end(); \
        return REAL(name)(path, flags, mode); }

OPENING(open)
OPENING(open64)
TORN(pwrite, off_t)
TORN(pwrite64, off64_t)
ENDING(int, close, (int file), file)
ENDING(int, fsync, (int file), file)
ENDING(int, fdatasync, (int file), file)
ENDING(int, ftruncate, (int file, off_t size), file, size)
ENDING(int, ftruncate64, (int file, off64_t size), file, size)
ENDING(int, link, (const char *one, const char *two), one, two)
ENDING(int, linkat, (int a, const char *one, int b, const char *two, int flags), a, one, b, two, flags)
ENDING(int, rename, (const char *one, const char *two), one, two)
ENDING(int, unlink, (const char *path), path)

ssize_t write(int file, const void *data, size_t size) {
    if (is_end()) { REAL(write)(file, data, size / 2); end(); }
    return REAL(write)(file, data, size);
}
