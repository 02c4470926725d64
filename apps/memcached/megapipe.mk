# Copied into an adapted tree as GNUmakefile, which GNU make takes before memcached's Makefile: the same
# build with our sources in it. MEGAPIPE_INCLUDE is the directory of megapipe.h, MEGAPIPE_LIBRARY the
# path of libmegapipe.a.

include Makefile

megapipe_parts = workers worker connection stream prefetch listen
megapipe_objects = $(megapipe_parts:%=memcached-megapipe_%.o)
megapipe_debug_objects = $(megapipe_parts:%=memcached_debug-megapipe_%.o)

memcached_OBJECTS += $(megapipe_objects)
memcached_debug_OBJECTS += $(megapipe_debug_objects)
memcached: $(megapipe_objects) $(MEGAPIPE_LIBRARY)
memcached-debug: $(megapipe_debug_objects) $(MEGAPIPE_LIBRARY)

memcached_LDADD += $(MEGAPIPE_LIBRARY) -Wl,--gc-sections -lm -ldl
memcached_debug_LDADD += $(MEGAPIPE_LIBRARY) -lm -ldl

megapipe_compile = $(CC) $(DEFS) $(DEFAULT_INCLUDES) $(INCLUDES) -isystem $(MEGAPIPE_INCLUDE)
megapipe_headers = megapipe_seam.h megapipe_inside.h memcached.h $(MEGAPIPE_INCLUDE)/megapipe.h

memcached-megapipe_%.o: megapipe_%.c $(megapipe_headers)
	$(megapipe_compile) $(memcached_CPPFLAGS) $(CPPFLAGS) $(AM_CFLAGS) $(CFLAGS) -c -o $@ $<

memcached_debug-megapipe_%.o: megapipe_%.c $(megapipe_headers)
	$(megapipe_compile) $(AM_CPPFLAGS) $(CPPFLAGS) $(memcached_debug_CFLAGS) $(CFLAGS) -c -o $@ $<
