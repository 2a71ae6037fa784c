/* SPDX-License-Identifier: Apache-2.0 */
#include "base/file_system.h"
#include "base/base.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/vfs.h>

const char *file_system_name(const char *path, char buf[FILE_SYSTEM_NAME_SIZE])
{
    static const struct {
        unsigned long magic;
        const char *name;
    } KNOWN[] = {{0x6969, "nfs"},         {0x0BD00BD0, "lustre"}, {0x47504653, "gpfs"},
                 {0x19830326, "beegfs"},  {0x65735546, "fuse"},   {0x517B, "smb"},
                 {0xFF534D42, "cifs"},    {0xFE534D42, "smb2"},   {0xEF53, "ext4"},
                 {0x58465342, "xfs"},     {0x9123683E, "btrfs"},  {0x01021994, "tmpfs"},
                 {0x794C7630, "overlay"}, {0x00C36400, "ceph"},   {0x2FC12FC1, "zfs"}};
    struct statfs info;
    char *dir = path_dir(path);
    bool found = statfs(path, &info) == 0 || (dir != NULL && statfs(dir, &info) == 0);
    free(dir);
    if (!found)
        return "unknown";
    unsigned long magic = (unsigned long)info.f_type & 0xFFFFFFFFUL;
    for (size_t i = 0; i < sizeof KNOWN / sizeof KNOWN[0]; i++)
        if (KNOWN[i].magic == magic)
            return KNOWN[i].name;
    (void)snprintf(buf, FILE_SYSTEM_NAME_SIZE, "0x%lx", magic);
    return buf;
}
