package simnode

import (
	"errors"
	"io/fs"
)

// Handle names what a container holds: an open file or a mapping.
type Handle int

// ReadFile reads a whole file.
func (c *Container) ReadFile(path string) ([]byte, error) {
	resp, err := c.do(request{Op: opRead, Path: path})
	return resp.Data, err
}

// WriteFile makes or truncates a file and writes data to it, like os.WriteFile.
func (c *Container) WriteFile(path string, data []byte, perm fs.FileMode) error {
	_, err := c.do(request{Op: opWrite, Path: path, Data: data, Mode: uint32(perm)})
	return err
}

// ReadDir lists the names in a directory, sorted.
func (c *Container) ReadDir(path string) ([]string, error) {
	resp, err := c.do(request{Op: opReadDir, Path: path})
	return resp.Names, err
}

// Stat follows symlinks.
func (c *Container) Stat(path string) (FileInfo, error) {
	resp, err := c.do(request{Op: opStat, Path: path})
	if err != nil || resp.Info == nil {
		return FileInfo{}, err
	}
	return *resp.Info, nil
}

// Chmod changes a file's mode.
func (c *Container) Chmod(path string, mode fs.FileMode) error {
	_, err := c.do(request{Op: opChmod, Path: path, Mode: uint32(mode)})
	return err
}

// Symlink makes name a symlink to target.
func (c *Container) Symlink(target, name string) error {
	_, err := c.do(request{Op: opSymlink, Path: target, To: name})
	return err
}

// Mkdir makes one directory.
func (c *Container) Mkdir(path string, perm fs.FileMode) error {
	_, err := c.do(request{Op: opMkdir, Path: path, Mode: uint32(perm)})
	return err
}

// Remove removes a file or an empty directory.
func (c *Container) Remove(path string) error {
	_, err := c.do(request{Op: opRemove, Path: path})
	return err
}

// OpenDevice opens a device node for reading and writing and closes it:
// unix.EACCES on a mount with nodev.
func (c *Container) OpenDevice(path string) error {
	_, err := c.do(request{Op: opDevice, Path: path})
	return err
}

// Exec runs the program at the path argv[0] and waits for its end. exit is its
// status, or 128 and the signal that ended it; output is what it wrote to both
// streams. err says that it could not be started: unix.EACCES on a mount with
// noexec.
//
// A copy of the running binary prints the ids that it runs with,
// "uid=1000 euid=0 gid=100 egid=100": with the set-uid bit, that tells whether
// the mount honours it.
func (c *Container) Exec(argv ...string) (exit int, output string, err error) {
	if len(argv) == 0 {
		return 0, "", c.core.errorf(errors.New("exec without a program"))
	}
	resp, err := c.do(request{Op: opPrepare, Argv: argv})
	if err != nil {
		return 0, "", err
	}
	if _, err := c.core.markInner(resp.N); err != nil {
		return 0, "", c.core.errorf(err)
	}
	resp, err = c.do(request{Op: opExec, Argv: argv, Handle: resp.N})
	return resp.N, resp.Text, err
}

// Hold opens a file, or a directory, and keeps it open: for writing too where
// that is allowed.
func (c *Container) Hold(path string) (Handle, error) {
	resp, err := c.do(request{Op: opHold, Path: path})
	return Handle(resp.N), err
}

// Mmap maps a file, which must not be empty, and closes it: only the mapping is
// left to hold it.
func (c *Container) Mmap(path string) (Handle, error) {
	resp, err := c.do(request{Op: opMap, Path: path})
	return Handle(resp.N), err
}

// HeldRead reads from the start of what h holds.
func (c *Container) HeldRead(h Handle) ([]byte, error) {
	resp, err := c.do(request{Op: opHeldRead, Handle: int(h)})
	return resp.Data, err
}

// HeldWrite writes at the start of the open file that h holds.
func (c *Container) HeldWrite(h Handle, data []byte) error {
	_, err := c.do(request{Op: opHeldWrite, Handle: int(h), Data: data})
	return err
}

// Drop closes or unmaps what h holds.
func (c *Container) Drop(h Handle) error {
	_, err := c.do(request{Op: opDrop, Handle: int(h)})
	return err
}

// Chdir changes the working directory of the process; relative paths start
// there.
func (c *Container) Chdir(path string) error {
	_, err := c.do(request{Op: opChdir, Path: path})
	return err
}

// Mount mounts a new filesystem of a type that needs no device ("tmpfs").
func (c *Container) Mount(fstype, path string) error {
	_, err := c.do(request{Op: opMount, Path: path, To: fstype})
	return err
}

// BindMount binds src, without the mounts beneath it, on dst.
func (c *Container) BindMount(src, dst string) error {
	_, err := c.do(request{Op: opBind, Path: src, To: dst})
	return err
}

// Unmount takes the topmost mount off path, and not by detaching it.
func (c *Container) Unmount(path string) error {
	_, err := c.do(request{Op: opUnmount, Path: path})
	return err
}
