/* Part of power_recorder.c: changes of names, which are recorded, and what changes files in ways that
 * can't be. */
#pragma once

/* ---- Names -------------------------------------------------------------------------------- */

static int rename_traced(int from_dir, const char *from, int to_dir, const char *to,
                         unsigned flags) {
    char paths[2 * PATH_MAX], second[PATH_MAX];
    int below = resolve(from_dir, from, paths), into = resolve(to_dir, to, second);
    int (*rename_)(int, const char *, int, const char *, unsigned) =
        REAL(int, renameat2, int, const char *, int, const char *, unsigned);
    if (log_fd < 0 || (!below && !into))
        return rename_(from_dir, from, to_dir, to, flags);
    if (below != into || (flags & RENAME_EXCHANGE))
        give_up("a rename into or out of the folder", from);
    lock();
    uint64_t inode = inode_at(paths);
    int result = rename_(from_dir, from, to_dir, to, flags);
    if (result == 0) {
        size_t length = strlen(paths) + 1;
        struct iovec parts[] = {{paths, length}, {second, strlen(second)}};
        record((struct record){.kind = RENAME, .inode = inode}, parts, 2,
               length + parts[1].iov_len);
    }
    unlock();
    return result;
}

int rename(const char *from, const char *to) {
    return rename_traced(AT_FDCWD, from, AT_FDCWD, to, 0);
}

int renameat(int from_dir, const char *from, int to_dir, const char *to) {
    return rename_traced(from_dir, from, to_dir, to, 0);
}

int renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags) {
    return rename_traced(from_dir, from, to_dir, to, flags);
}

int linkat(int from_dir, const char *from, int to_dir, const char *to, int flags) {
    char full[PATH_MAX];
    int (*link_)(int, const char *, int, const char *, int) =
        REAL(int, linkat, int, const char *, int, const char *, int);
    if (!resolve(to_dir, to, full) || log_fd < 0)
        return link_(from_dir, from, to_dir, to, flags);
    lock();
    int result = link_(from_dir, from, to_dir, to, flags);
    if (result == 0)
        record_path(LINK, inode_at(full), full);
    unlock();
    return result;
}

int link(const char *from, const char *to) {
    return linkat(AT_FDCWD, from, AT_FDCWD, to, 0);
}

int unlinkat(int directory, const char *path, int flags) {
    char full[PATH_MAX];
    int (*unlink_)(int, const char *, int) = REAL(int, unlinkat, int, const char *, int);
    if (!resolve(directory, path, full) || log_fd < 0)
        return unlink_(directory, path, flags);
    lock();
    uint64_t inode = inode_at(full);
    int result = unlink_(directory, path, flags);
    if (result == 0)
        record_path(flags & AT_REMOVEDIR ? RMDIR : UNLINK, inode, full);
    unlock();
    return result;
}

int unlink(const char *path) {
    return unlinkat(AT_FDCWD, path, 0);
}

int rmdir(const char *path) {
    return unlinkat(AT_FDCWD, path, AT_REMOVEDIR);
}

int remove(const char *path) {
    int result = unlink(path);
    return result != 0 && errno == EISDIR ? rmdir(path) : result;
}

int mkdirat(int directory, const char *path, mode_t mode) {
    char full[PATH_MAX];
    int (*mkdir_)(int, const char *, mode_t) = REAL(int, mkdirat, int, const char *, mode_t);
    if (!resolve(directory, path, full) || log_fd < 0)
        return mkdir_(directory, path, mode);
    lock();
    int result = mkdir_(directory, path, mode);
    if (result == 0)
        record_path(MKDIR, inode_at(full), full);
    unlock();
    return result;
}

int mkdir(const char *path, mode_t mode) {
    return mkdirat(AT_FDCWD, path, mode);
}

/* ---- What it can't follow ----------------------------------------------------------------- */

static void *open_stream(const char *name, const char *path, const char *mode) {
    char full[PATH_MAX];
    if (mode[0] != 'r' || strchr(mode, '+'))
        if (resolve(AT_FDCWD, path, full))
            give_up("a stream", full);
    return ((void *(*)(const char *, const char *))real(name))(path, mode);
}

FILE *fopen(const char *path, const char *mode) {
    return open_stream("fopen", path, mode);
}

FILE *fopen64(const char *path, const char *mode) {
    return open_stream("fopen64", path, mode);
}

FILE *freopen(const char *path, const char *mode, FILE *stream) {
    char full[PATH_MAX];
    if (path && (mode[0] != 'r' || strchr(mode, '+')) && resolve(AT_FDCWD, path, full))
        give_up("a stream", full);
    return REAL(FILE *, freopen, const char *, const char *, FILE *)(path, mode, stream);
}

FILE *fdopen(int fd, const char *mode) {
    if ((mode[0] != 'r' || strchr(mode, '+')) && is_traced(fd))
        give_up("a stream", "a file");
    return REAL(FILE *, fdopen, int, const char *)(fd, mode);
}

static int make_temporary(const char *name, char *path, int flags) {
    char full[PATH_MAX];
    if (resolve(AT_FDCWD, path, full))
        give_up("a temporary file", full);
    int fd = ((int (*)(char *, int))real(name))(path, flags); /* mkstemp has no flags */
    know(fd, FOREIGN);
    return fd;
}

int mkstemp(char *path) {
    return make_temporary("mkstemp", path, 0);
}

int mkstemp64(char *path) {
    return make_temporary("mkstemp64", path, 0);
}

int mkostemp(char *path, int flags) {
    return make_temporary("mkostemp", path, flags);
}

int mkostemp64(char *path, int flags) {
    return make_temporary("mkostemp64", path, flags);
}

int symlinkat(const char *target, int directory, const char *path) {
    char full[PATH_MAX];
    if (resolve(directory, path, full))
        give_up("a symbolic link", full);
    return REAL(int, symlinkat, const char *, int, const char *)(target, directory, path);
}

int symlink(const char *target, const char *path) {
    return symlinkat(target, AT_FDCWD, path);
}

ssize_t copy_file_range(int from, off64_t *from_offset, int to, off64_t *to_offset, size_t length,
                        unsigned flags) {
    if (is_traced(to))
        give_up("a copy in the kernel", "a file");
    return REAL(ssize_t, copy_file_range, int, off64_t *, int, off64_t *, size_t,
                unsigned)(from, from_offset, to, to_offset, length, flags);
}

ssize_t sendfile(int to, int from, off_t *offset, size_t length) {
    if (is_traced(to))
        give_up("a copy in the kernel", "a file");
    return REAL(ssize_t, sendfile, int, int, off_t *, size_t)(to, from, offset, length);
}

ssize_t sendfile64(int to, int from, off64_t *offset, size_t length) {
    return sendfile(to, from, offset, length);
}

ssize_t splice(int from, off64_t *from_offset, int to, off64_t *to_offset, size_t length,
               unsigned flags) {
    if (is_traced(to))
        give_up("a copy in the kernel", "a file");
    return REAL(ssize_t, splice, int, off64_t *, int, off64_t *, size_t,
                unsigned)(from, from_offset, to, to_offset, length, flags);
}
