// An echo server in Go: a goroutine for each connection, over a channel that one thread serves.
//
//	go run echo.go 0        (PORT, 0 for any; package golang-go)
package main

/*
#cgo pkg-config: megapipe
#include <megapipe.h>
#include <stdlib.h>

// Cookies are numbers here: C must not keep pointers of Go.
static mp_handle enter(mp_channel *channel, int fd, uintptr_t cookie)
{ return mp_register(channel, fd, (void *)cookie, NULL); }
static uintptr_t cookie_of(const struct mp_event *ev) { return (uintptr_t)ev->cookie; }
*/
import "C"

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"syscall"
)

var (
	calls   = make(chan func(), 1024) // for the channel's thread
	wake    int                       // an eventfd(2), which tells it that there are some
	members = map[C.uintptr_t]*conn{} // by cookie; only that thread uses it
)

// A connection. Any goroutine may use it, one at a time.
type conn struct {
	handle C.mp_handle
	data   []byte
	done   chan bool
}

// Submits a request, and waits for its event. False after an error, and at the end of the stream.
func (c *conn) do(submit func() C.int) bool {
	calls <- func() {
		if submit() < 0 {
			c.done <- false
		}
	}
	syscall.Write(wake, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	return <-c.done
}

func serve(c *conn) {
	for c.do(func() C.int { return C.mp_recv(c.handle, 0) }) {
		bytes, size := C.CBytes(c.data), C.size_t(len(c.data))
		written := c.do(func() C.int { return C.mp_write(c.handle, bytes, size) })
		C.free(bytes) // after the event
		if !written {
			break
		}
	}
	c.do(func() C.int { return C.mp_close(c.handle) })
}

// The channel's thread. Memory that the kernel uses is C's, because Go may move or free its own.
func run(listener C.int) {
	runtime.LockOSThread()
	channel := C.mp_create(nil)
	count := C.malloc(8)
	waker, server := C.enter(channel, C.int(wake), 0), C.enter(channel, listener, 0)
	if C.mp_read(waker, count, 8) < 0 || C.mp_accept(server, 0, C.MP_LWSOCKET) < 0 {
		panic(C.GoString(C.mp_error()))
	}
	var ev C.struct_mp_event
	for cookie := C.uintptr_t(0); ; {
		for len(calls) > 0 {
			(<-calls)()
		}
		if n := C.mp_dispatch(channel, &ev, -1); n < 0 {
			panic(C.GoString(C.mp_error()))
		} else if n == 0 {
			continue // a signal, such as Go's own for preemption
		}
		member := members[C.cookie_of(&ev)]
		switch {
		case ev.cmd == C.MP_READ:
			C.mp_read(waker, count, 8)
		case ev.cmd == C.MP_ACCEPT && ev.error == 0:
			cookie++
			c := &conn{C.enter(channel, C.int(ev.fd), cookie), nil, make(chan bool, 1)}
			members[cookie] = c
			go serve(c)
		case ev.cmd == C.MP_ACCEPT && ev.flags&C.MP_MORE == 0:
			panic(syscall.Errno(ev.error)) // with MP_MORE the channel accepts again by itself
		case member != nil:
			if ev.buffer >= 0 {
				member.data = C.GoBytes(ev.data, C.int(ev.size))
				C.mp_release(channel, ev.buffer)
			}
			if ev.cmd == C.MP_CLOSE {
				delete(members, C.cookie_of(&ev))
			}
			member.done <- ev.error == 0 && (ev.cmd != C.MP_RECV || ev.buffer >= 0)
		}
	}
}

func main() {
	port, _ := strconv.Atoi(os.Args[1])
	// Not package net, which closes a descriptor as soon as Go no longer uses its owner.
	listener, _ := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	address := syscall.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}}
	if err := syscall.Bind(listener, &address); err != nil {
		panic(err)
	}
	syscall.Listen(listener, 1024)
	bound, _ := syscall.Getsockname(listener)
	made, _, _ := syscall.Syscall(syscall.SYS_EVENTFD2, 0, syscall.O_CLOEXEC, 0)
	wake = int(made)
	fmt.Printf("listening on 127.0.0.1:%d\n", bound.(*syscall.SockaddrInet4).Port)
	run(C.int(listener))
}
