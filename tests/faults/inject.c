// Fault injection beneath every writer of a process: loaded with LD_PRELOAD, it stands before the
// libc calls that change files under one directory, counts and logs them, and makes chosen calls
// fail or kills the process there. inject.py describes the rules.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdio_ext.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum action { PASS, KILL, KILL_HALF, KILL_AFTER, FAIL, SHORT, STOP };

static struct {
  pthread_mutex_t lock;
  char directory[PATH_MAX];
  size_t directory_length;
  int log;              // file descriptor, or -1
  long calls;           // counted calls so far
  enum action action;
  int error;
  char operations[256];  // "*" or "|write|open|"
  char pattern[PATH_MAX];
  long first, last, modulus;  // which of the matching calls
  long then;            // SIGKILL this many calls after the first failure; 0: never
  long matches, fired, fired_at;
  char torn[PATH_MAX];  // path of a short write, whose next write fails
} g = {.lock = PTHREAD_MUTEX_INITIALIZER, .log = -1};

static void die(void) {
  kill(getpid(), SIGKILL);
  for (;;) pause();
}

static int number_of(const char* name) {
  if (!strcmp(name, "ENOSPC")) return ENOSPC;
  if (!strcmp(name, "EIO")) return EIO;
  if (!strcmp(name, "EDQUOT")) return EDQUOT;
  return EIO;
}

// `rule`: "" or "log", else "<action>@<operations>:<pattern>:<which>" as in inject.py. Returns 0,
// or -1 where the rule cannot be read.
int rlx2_fault_set(const char* directory, const char* rule, const char* log) {
  char action[64] = "", operations[200] = "", pattern[2000] = "", which[64] = "";
  pthread_mutex_lock(&g.lock);
  snprintf(g.directory, sizeof g.directory, "%s", directory);
  g.directory_length = strlen(directory);
  if (g.log >= 0) syscall(SYS_close, g.log);
  g.log = *log ? syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644)
               : -1;
  g.calls = g.matches = g.fired = g.fired_at = g.then = g.modulus = 0;
  g.torn[0] = 0;
  g.action = PASS;
  int bad = 0;
  if (*rule && strcmp(rule, "log")) {
    bad = sscanf(rule, "%63[^@]@%199[^:]:%1999[^:]:%63s", action, operations, pattern, which) != 4;
    char* then = strstr(action, ",then=");
    if (then) g.then = atol(then + 6), *then = 0;
    char* error = strchr(action, '=');
    if (error) g.error = number_of(error + 1), *error = 0;
    if (!strcmp(action, "kill")) g.action = KILL;
    else if (!strcmp(action, "killhalf")) g.action = KILL_HALF;
    else if (!strcmp(action, "killafter")) g.action = KILL_AFTER;
    else if (!strcmp(action, "fail")) g.action = FAIL;
    else if (!strcmp(action, "short")) g.action = SHORT;
    else if (!strcmp(action, "term")) g.action = STOP;
    else bad = 1;
    snprintf(g.operations, sizeof g.operations, strcmp(operations, "*") ? "|%s|" : "%s",
             operations);
    snprintf(g.pattern, sizeof g.pattern, "%s", pattern);
    char* rest;
    g.first = g.last = strtol(which, &rest, 10);
    if (*rest == '-') g.last = rest[1] ? atol(rest + 1) : LONG_MAX;
    if (*rest == '%') {  // remainder%modulus, counted from `first` on
      g.modulus = strtol(rest + 1, &rest, 10);
      g.last = *rest == '>' ? atol(rest + 1) : 0;
    }
  }
  pthread_mutex_unlock(&g.lock);
  return bad ? -1 : 0;
}

long rlx2_fault_fired(void) { return g.fired; }

__attribute__((constructor)) static void from_environment(void) {
  const char* directory = getenv("RLX2_FAULT_DIR");
  const char* rule = getenv("RLX2_FAULT");
  const char* log = getenv("RLX2_FAULT_LOG");
  if (directory && *directory) rlx2_fault_set(directory, rule ? rule : "", log ? log : "");
}

// The absolute path of `path` seen from the open directory `at`.
static void absolute(char* out, int at, const char* path) {
  char base[PATH_MAX] = "";
  if (path[0] == '/') {
    snprintf(out, PATH_MAX, "%s", path);
    return;
  }
  if (at == AT_FDCWD) {
    if (!getcwd(base, sizeof base)) base[0] = 0;
  } else {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", at);
    ssize_t n = readlink(link, base, sizeof base - 1);
    base[n > 0 ? n : 0] = 0;
  }
  if (snprintf(out, PATH_MAX, "%s/%s", base, path) >= PATH_MAX) out[0] = 0;
}

static void of_descriptor(char* out, int fd) {
  char link[64];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t n = readlink(link, out, PATH_MAX - 1);
  out[n > 0 ? n : 0] = 0;
}

static int chosen(const char* operation, const char* relative) {
  if (g.action == PASS) return 0;
  char wanted[64];
  snprintf(wanted, sizeof wanted, "|%s|", operation);
  if (strcmp(g.operations, "*") && !strstr(g.operations, wanted)) return 0;
  if (fnmatch(g.pattern, relative, 0)) return 0;
  long n = ++g.matches;
  if (g.modulus) return n > g.last && n % g.modulus == g.first;
  return n >= g.first && n <= g.last;
}

// Called before a call is made. PASS: make it. FAIL: return -1, errno is set.
// Other actions are left to the caller, which knows how to make half of the call.
static enum action before(const char* operation, const char* path) {
  if (!g.directory_length || strncmp(path, g.directory, g.directory_length) ||
      (path[g.directory_length] != '/' && path[g.directory_length]))
    return PASS;
  int saved = errno;
  const char* relative = path + g.directory_length;
  relative = *relative ? relative + 1 : ".";
  pthread_mutex_lock(&g.lock);
  long index = ++g.calls;
  enum action act = PASS;
  int writes = strstr("write pwrite writev pwritev", operation) != NULL;
  if (g.torn[0] && writes && !strcmp(g.torn, path)) {
    g.torn[0] = 0;
    act = FAIL;
  } else if (chosen(operation, relative)) {
    act = g.action;
    g.fired++;
    if (!g.fired_at) g.fired_at = index;
    if (act == SHORT) {
      if (writes) snprintf(g.torn, sizeof g.torn, "%s", path);
      else act = FAIL;
    }
    if (act == KILL_HALF && !writes) act = KILL;
  }
  int over = g.then && g.fired_at && index >= g.fired_at + g.then;
  if (g.log >= 0) {
    char line[PATH_MAX + 100];
    static const char* names[] = {"", "kill", "killhalf", "killafter", "fail", "short", "term"};
    int n = snprintf(line, sizeof line, "%ld\t%s\t%s\t%s\n", index, operation, relative,
                     over ? "kill" : names[act]);
    if (n > 0) syscall(SYS_write, g.log, line, n);
  }
  int error = g.error;
  pthread_mutex_unlock(&g.lock);
  if (over || act == KILL) die();
  if (act == STOP) {
    kill(getpid(), SIGTERM);
    act = PASS;
  }
  errno = act == FAIL ? error : saved;
  return act;
}

#define REAL(name) \
  static __typeof__(&name) real; \
  if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

#define AFTER(act) if ((act) == KILL_AFTER) die()

// A call that either happens or does not.
#define WHOLE(operation, path, call) \
  do { \
    enum action act = before(operation, path); \
    if (act == FAIL) return -1; \
    int result = call; \
    AFTER(act); \
    return result; \
  } while (0)

static int changes(int flags) { return (flags & O_ACCMODE) != O_RDONLY || flags & (O_CREAT | O_TRUNC); }

#define OPEN(name, at_parameter, at) \
  int name(at_parameter const char* path, int flags, ...) { \
    REAL(name); \
    mode_t mode = 0; \
    if (flags & (O_CREAT | __O_TMPFILE)) { \
      va_list more; \
      va_start(more, flags); \
      mode = va_arg(more, mode_t); \
      va_end(more); \
    } \
    if (!changes(flags)) return OPEN_CALL(at, path, flags, mode); \
    char full[PATH_MAX]; \
    absolute(full, at, path); \
    WHOLE("open", full, OPEN_CALL(at, path, flags, mode)); \
  }
#define NOTHING
#define OPEN_CALL(at, path, flags, mode) real(path, flags, mode)
OPEN(open, NOTHING, AT_FDCWD)
OPEN(open64, NOTHING, AT_FDCWD)
#undef OPEN_CALL
#define OPEN_CALL(at, path, flags, mode) real(at, path, flags, mode)
#define AT int at,
OPEN(openat, AT, at)
OPEN(openat64, AT, at)

#define CREAT(name) \
  int name(const char* path, mode_t mode) { \
    REAL(name); \
    char full[PATH_MAX]; \
    absolute(full, AT_FDCWD, path); \
    WHOLE("open", full, real(path, mode)); \
  }
CREAT(creat)
CREAT(creat64)

#define FOPEN(name) \
  FILE* name(const char* path, const char* mode) { \
    REAL(name); \
    if (strchr("wa", mode[0]) || strchr(mode, '+')) { \
      char full[PATH_MAX]; \
      absolute(full, AT_FDCWD, path); \
      if (before("open", full) == FAIL) return NULL; \
    } \
    return real(path, mode); \
  }
FOPEN(fopen)
FOPEN(fopen64)

// A write: whole, half, or not at all.
#define WRITE(operation, fd, count, call) \
  do { \
    char path[PATH_MAX]; \
    of_descriptor(path, fd); \
    enum action act = before(operation, path); \
    if (act == FAIL) return -1; \
    if ((act == KILL_HALF || act == SHORT) && (count) > 1) count = (count) / 2; \
    ssize_t result = call; \
    if (act == KILL_HALF) die(); \
    AFTER(act); \
    return result; \
  } while (0)

ssize_t write(int fd, const void* data, size_t count) {
  REAL(write);
  WRITE("write", fd, count, real(fd, data, count));
}
ssize_t pwrite(int fd, const void* data, size_t count, off_t offset) {
  REAL(pwrite);
  WRITE("pwrite", fd, count, real(fd, data, count, offset));
}
ssize_t pwrite64(int fd, const void* data, size_t count, off64_t offset) {
  REAL(pwrite64);
  WRITE("pwrite", fd, count, real(fd, data, count, offset));
}
ssize_t writev(int fd, const struct iovec* parts, int count) {
  REAL(writev);
  WRITE("writev", fd, count, real(fd, parts, count));
}
ssize_t pwritev(int fd, const struct iovec* parts, int count, off_t offset) {
  REAL(pwritev);
  WRITE("pwritev", fd, count, real(fd, parts, count, offset));
}
ssize_t pwritev64(int fd, const struct iovec* parts, int count, off64_t offset) {
  REAL(pwritev64);
  WRITE("pwritev", fd, count, real(fd, parts, count, offset));
}
ssize_t sendfile(int fd, int from, off_t* offset, size_t count) {
  REAL(sendfile);
  WRITE("write", fd, count, real(fd, from, offset, count));
}
ssize_t sendfile64(int fd, int from, off64_t* offset, size_t count) {
  REAL(sendfile64);
  WRITE("write", fd, count, real(fd, from, offset, count));
}
ssize_t copy_file_range(int from, off64_t* a, int fd, off64_t* b, size_t count, unsigned flags) {
  REAL(copy_file_range);
  WRITE("write", fd, count, real(from, a, fd, b, count, flags));
}

// Buffered streams (ndarray.tofile): data goes to the file when the stream is flushed or closed,
// or at once when it exceeds the buffer. A failed flush loses the buffer, as on a full disk.
static enum action before_flush(FILE* stream) {
  if (!stream || !__fpending(stream)) return PASS;
  char path[PATH_MAX];
  of_descriptor(path, fileno(stream));
  enum action act = before("write", path);
  if (act == FAIL || act == SHORT || act == KILL_HALF) {
    int saved = errno;
    __fpurge(stream);
    errno = act == SHORT ? g.error : saved;
  }
  return act;
}
#define FLUSH(name) \
  int name(FILE* stream) { \
    REAL(name); \
    enum action act = before_flush(stream); \
    int saved = errno, result = real(stream); \
    if (act == KILL_HALF || act == KILL_AFTER) die(); \
    if (act == PASS) return result; \
    errno = saved; \
    return EOF; \
  }
FLUSH(fflush)
FLUSH(fclose)
size_t fwrite(const void* data, size_t size, size_t count, FILE* stream) {
  REAL(fwrite);
  if (size * count < BUFSIZ / 2) return real(data, size, count, stream);
  char path[PATH_MAX];
  of_descriptor(path, fileno(stream));
  enum action act = before("write", path);
  if (act == FAIL) return 0;
  if (act == SHORT || act == KILL_HALF) count /= 2;
  size_t result = real(data, size, count, stream);
  if (act == KILL_HALF || act == KILL_AFTER) {
    fflush(stream);
    die();
  }
  return result;
}

// Calls on an open file.
#define ON_FILE(name, operation, parameters, arguments) \
  int name parameters { \
    REAL(name); \
    char path[PATH_MAX]; \
    of_descriptor(path, fd); \
    WHOLE(operation, path, real arguments); \
  }
ON_FILE(fsync, "fsync", (int fd), (fd))
ON_FILE(fdatasync, "fsync", (int fd), (fd))
ON_FILE(ftruncate, "truncate", (int fd, off_t length), (fd, length))
ON_FILE(ftruncate64, "truncate", (int fd, off64_t length), (fd, length))
ON_FILE(fallocate, "truncate", (int fd, int mode, off_t a, off_t b), (fd, mode, a, b))
ON_FILE(fallocate64, "truncate", (int fd, int mode, off64_t a, off64_t b), (fd, mode, a, b))
ON_FILE(posix_fallocate, "truncate", (int fd, off_t a, off_t b), (fd, a, b))

// Calls on a path.
#define ON_PATH(name, operation, at, path, parameters, arguments) \
  int name parameters { \
    REAL(name); \
    char full[PATH_MAX]; \
    absolute(full, at, path); \
    WHOLE(operation, full, real arguments); \
  }
ON_PATH(truncate, "truncate", AT_FDCWD, path, (const char* path, off_t n), (path, n))
ON_PATH(truncate64, "truncate", AT_FDCWD, path, (const char* path, off64_t n), (path, n))
ON_PATH(mkdir, "mkdir", AT_FDCWD, path, (const char* path, mode_t mode), (path, mode))
ON_PATH(mkdirat, "mkdir", at, path, (int at, const char* path, mode_t mode), (at, path, mode))
ON_PATH(unlink, "unlink", AT_FDCWD, path, (const char* path), (path))
ON_PATH(remove, "unlink", AT_FDCWD, path, (const char* path), (path))
ON_PATH(unlinkat, "unlink", at, path, (int at, const char* path, int flags), (at, path, flags))
ON_PATH(rmdir, "rmdir", AT_FDCWD, path, (const char* path), (path))
// The operation and the name a file gets: what a reader will see.
ON_PATH(rename, "rename", AT_FDCWD, b, (const char* a, const char* b), (a, b))
ON_PATH(renameat, "rename", to, b, (int from, const char* a, int to, const char* b),
        (from, a, to, b))
ON_PATH(renameat2, "rename", to, b,
        (int from, const char* a, int to, const char* b, unsigned flags), (from, a, to, b, flags))
ON_PATH(link, "link", AT_FDCWD, b, (const char* a, const char* b), (a, b))
ON_PATH(linkat, "link", to, b, (int from, const char* a, int to, const char* b, int flags),
        (from, a, to, b, flags))
ON_PATH(symlink, "link", AT_FDCWD, b, (const char* a, const char* b), (a, b))
