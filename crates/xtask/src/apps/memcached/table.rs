//! What changes in memcached 1.6.18, as Debian patched it.

use crate::apps::edits::{Change, Changed, Edit};

/// The upstream version that the table is for.
pub(crate) const VERSION: &str = "1.6.18";

/// Our sources, which stand beside memcached's.
pub(crate) const OURS: &[&str] = &[
    "GNUmakefile",
    "megapipe_seam.h",
    "megapipe_inside.h",
    "megapipe_worker.c",
    "megapipe_connection.c",
    "megapipe_stream.c",
    "megapipe_prefetch.c",
    "megapipe_listen.c",
];

/// A branch of a chain of comparisons.
const STATISTICS: &str = r#"        } else if (nz_strcmp(nkey, stat_type, "megapipe") == 0) {
            megapipe_stats(add_stats, c);"#;

/// The table itself is known to its own file only.
const BUCKET: &str = "const void *megapipe_bucket(uint32_t hash_value) {
    return &primary_hashtable[hash_value & hashmask(hashpower)];
}";

/// All of them are memcached's own files.
pub(crate) const TABLE: &[Changed] = &[
    Changed {
        file: "memcached.h",
        sha256: "f905468edf2799c86dc99921300e24f0f2acad75b6daa8d0207922a57f2571d4",
        edits: &[
            Edit {
                why: "all files see the seam",
                anchor: "#include <event.h>",
                times: 1,
                change: Change::After("#include \"megapipe_seam.h\""),
            },
            Edit {
                why: "a connection knows its place in a channel",
                anchor: "    short  which;",
                times: 1,
                change: Change::After("    struct megapipe_connection *channel;"),
            },
        ],
    },
    Changed {
        file: "memcached.c",
        sha256: "6678be16cdf539b25f0c01622ef80386b39ccd391bc219e997089a2eb050bfaf",
        edits: &[
            Edit {
                why: "reading comes from the channel",
                anchor: "return read(c->sfd,",
                times: 1,
                change: Change::Replace("return megapipe_read(c,"),
            },
            Edit {
                why: "responses go to the channel",
                anchor: "return sendmsg(c->sfd,",
                times: 1,
                change: Change::Replace("return megapipe_sendmsg(c,"),
            },
            Edit {
                why: "a connection's base may be a worker's channel",
                anchor: "event_base_set(base, &c->event)",
                times: 2,
                change: Change::Replace("megapipe_event_base_set(base, &c->event)"),
            },
            Edit {
                why: "and is one when a side thread gives it back",
                anchor: "event_base_set(c->thread->base, &c->event)",
                times: 1,
                change: Change::Replace("megapipe_event_base_set(c->thread->base, &c->event)"),
            },
            Edit {
                why: "connections are added to the channel",
                anchor: "event_add(&c->event, 0)",
                times: 3,
                change: Change::Replace("megapipe_event_add(&c->event, 0)"),
            },
            Edit {
                why: "and taken out of it",
                anchor: "event_del(&c->event)",
                times: 3,
                change: Change::Replace("megapipe_event_del(&c->event)"),
            },
            Edit {
                why: "a socket is closed behind what is being sent",
                anchor: "    close(c->sfd);",
                times: 1,
                change: Change::Replace("    megapipe_close(c);"),
            },
            Edit {
                why: "the limit of connections is one of descriptors, of which channels have more",
                anchor: "rlim.rlim_max = settings.maxconns;",
                times: 1,
                change: Change::Replace("rlim.rlim_max = megapipe_hard_limit(rlim.rlim_max);"),
            },
            Edit {
                why: "and so is whether a connection is one too many",
                anchor: "sfd >= settings.maxconns - 1",
                times: 1,
                change: Change::Replace("megapipe_is_full(sfd)"),
            },
            Edit {
                why: "the ring of a killed server holds its address a moment longer",
                anchor: "bind(sfd, next",
                times: 1,
                change: Change::Replace("megapipe_bind(sfd, next"),
            },
            Edit {
                why: "a server that ends gives its address free before",
                anchor: "case EXIT_NORMALLY:",
                times: 1,
                change: Change::After("            megapipe_stop_accepting();"),
            },
            Edit {
                why: "every worker accepts",
                anchor: "listen_conn = listen_conn_add;",
                times: 1,
                change: Change::After("            megapipe_listen(listen_conn_add);"),
            },
            Edit {
                why: "statistics of the channel, as `stats megapipe`",
                anchor: "item_stats_sizes_disable(add_stats, c);",
                times: 1,
                change: Change::After(STATISTICS),
            },
        ],
    },
    Changed {
        file: "assoc.c",
        sha256: "b683d7c6b61e50501eb3cbd2d74f1102668c89a5e744b8adc8ed66146f77bd52",
        edits: &[Edit {
            why: "a worker fetches the items of the requests that it will answer next",
            anchor: "static uint64_t expand_bucket",
            times: 1,
            change: Change::After(BUCKET),
        }],
    },
    Changed {
        file: "proto_text.c",
        sha256: "3b30cad90f961d4d29df7987cada4165899a19a1f9d1ea666cc310b44d5d62da",
        edits: &[
            Edit {
                why: "connections lent to a side thread leave the channel's events",
                anchor: "event_del(&c->event)",
                times: 2,
                change: Change::Replace("megapipe_event_del(&c->event)"),
            },
            Edit {
                why: "which are made ready before the logger knows them",
                anchor: "switch(logger_add_watcher(",
                times: 1,
                change: Change::Replace("megapipe_lend(c);\n    switch(logger_add_watcher("),
            },
            Edit {
                why: "and before the crawler does",
                anchor: "int rv = lru_crawler_crawl(",
                times: 1,
                change: Change::Replace("megapipe_lend(c);\n        int rv = lru_crawler_crawl("),
            },
        ],
    },
    Changed {
        file: "thread.c",
        sha256: "b0862bbbda4d2b53be70aaf35fa4ba16897c58c04d996b040c82a031a768a771",
        edits: &[
            Edit {
                why: "a worker has a channel in place of a libevent base",
                anchor: "LIBEVENT_VERSION_NUMBER >=",
                times: 1,
                change: Change::Lines(
                    9,
                    "    me->base = megapipe_worker_new(me, me->notify_event_fd, \
                     thread_libevent_process);",
                ),
            },
            Edit {
                why: "which watches the worker's wake-up descriptor by itself",
                anchor: "Listen for notifications",
                times: 1,
                change: Change::Lines(15, ""),
            },
            Edit {
                why: "the worker's loop",
                anchor: "event_base_loop(me->base, 0)",
                times: 1,
                change: Change::Replace("megapipe_worker_run(me->base)"),
            },
            Edit {
                why: "the end of a worker",
                anchor: "event_base_free(me->base)",
                times: 1,
                change: Change::Replace("megapipe_worker_free(me->base)"),
            },
            Edit {
                why: "a side thread leaves the state of a connection to the worker",
                anchor: "c->state = conn_closing;",
                times: 1,
                change: Change::Replace("megapipe_close_lent(c);"),
            },
            Edit {
                why: "stopping a worker",
                anchor: "event_base_loopexit(me->base, NULL)",
                times: 1,
                change: Change::Replace("megapipe_worker_stop(me->base)"),
            },
        ],
    },
];
