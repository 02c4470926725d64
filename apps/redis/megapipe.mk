# Copied into an adapted tree as src/GNUmakefile, which GNU make takes before redis' Makefile: the same
# build with our sources in it. MEGAPIPE_INCLUDE is the directory of megapipe.h, MEGAPIPE_LIBRARY the
# path of libmegapipe.a.

include Makefile

megapipe_objects = megapipe_channel.o megapipe_stream.o

$(REDIS_SERVER_NAME): $(megapipe_objects) $(MEGAPIPE_LIBRARY)
FINAL_LIBS += -Wl,--gc-sections -lm -ldl

$(megapipe_objects): megapipe_inside.h megapipe_seam.h $(MEGAPIPE_INCLUDE)/megapipe.h
$(megapipe_objects): REDIS_CC += -isystem $(MEGAPIPE_INCLUDE)
