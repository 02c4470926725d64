# Included by the Makefiles of this folder: finds libmegapipe, places what is built.

apps := $(patsubst %/,%,$(dir $(abspath $(lastword $(MAKEFILE_LIST)))))
app := $(notdir $(patsubst %/,%,$(dir $(abspath $(firstword $(MAKEFILE_LIST))))))
here := $(apps)/$(app)

ifneq ($(words $(here)),1)
$(error $(here) has a space in its path, which make cannot handle; move the checkout)
endif

BUILD ?= $(abspath $(apps)/../target/apps/$(app))
SOURCES ?= $(abspath $(BUILD)/../src)

.DEFAULT_GOAL := all
.ONESHELL:
.SHELLFLAGS := -ec
.DELETE_ON_ERROR:
.PHONY: all help clean sanitized FORCE

# Daemons lie there, and a user's PATH may lack it.
export PATH := $(PATH):/usr/sbin:/sbin

# Frame pointers are kept, so that a report names the callers.
sanitizer := -fsanitize=address -fno-omit-frame-pointer

# A static library is preferred: the result is a single file.
ifneq ($(filter-out help clean,$(or $(MAKECMDGOALS),all)),)
ifndef MEGAPIPE_LIB
MEGAPIPE_LIB := $(shell pkg-config --variable=libdir megapipe 2>/dev/null)
MEGAPIPE_INCLUDE := $(shell pkg-config --variable=includedir megapipe 2>/dev/null)
endif
library := $(abspath $(firstword $(wildcard $(MEGAPIPE_LIB:%=%/libmegapipe.a) \
    $(MEGAPIPE_LIB:%=%/libmegapipe.so))))
header := $(abspath $(wildcard $(MEGAPIPE_INCLUDE:%=%/megapipe.h)))
ifeq ($(and $(library),$(header)),)
define missing
libmegapipe or megapipe.h cannot be found:
    MEGAPIPE_LIB=$(MEGAPIPE_LIB) MEGAPIPE_INCLUDE=$(MEGAPIPE_INCLUDE)
Install the library, so that `pkg-config megapipe` finds it (`make -C crates/capi help`), or build it in
a checkout (`cargo build --release --locked -p megapipe-capi`) and name both directories:
    make -C apps/$(app) MEGAPIPE_LIB=$$PWD/target/release MEGAPIPE_INCLUDE=$$PWD/crates/capi/include
endef
$(error $(missing))
endif
include_directory := $(patsubst %/,%,$(dir $(header)))
endif

# $(call place,MADE,PLACE): moves a stripped copy of MADE to PLACE, so that a process that has the
# old file mapped keeps it. gdb(1) finds the debug information in the file beside it.
define place
objcopy --only-keep-debug $(1) $(2).debug
objcopy --strip-unneeded --add-gnu-debuglink=$(2).debug $(1) $(2).new
mv $(2).new $(2)
endef

clean:
	rm -rf $(BUILD)

FORCE:
