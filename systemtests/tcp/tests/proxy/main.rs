//! Tests the proxy as a process between clients and backends of all kinds, over every driver and
//! network path.

mod addresses;
mod backend;
mod client;
mod deaths;
mod limits;
mod negotiation;
mod privileges;
mod refusals;
mod reload;
mod server;
mod setup;
mod signals;
mod site;
mod stacks;
mod streams;
mod web;

use site::Testbed;

/// Creates a test of each function for a network path.
macro_rules! on {
    ($($module:ident $testbed:ident: { $($file:ident: $($name:ident),+;)+ })+) => {
        $(mod $module {
            $($(#[test]
            fn $name() {
                crate::$file::$name(super::Testbed::$testbed);
            })+)+
        })+
    };
}

/// Creates the tests of both drivers of the kernel's TCP.
macro_rules! on_kernel {
    ($($tests:tt)+) => {
        on! { uring Uring: { $($tests)+ } epoll Epoll: { $($tests)+ } }
    };
}

on_kernel! {
    web: curl_gets_every_byte, curl_puts_every_byte, connections_are_kept, ab_finds_no_failure;
    streams: each_direction_ends_by_itself, a_backend_that_resets_resets_the_client,
        a_cut_client_is_no_end_for_the_backend, a_slow_reader_holds_the_other_end_back,
        many_streams_at_once, both_families;
    refusals: a_backend_that_is_down_is_passed_over, without_a_backend_the_client_is_reset,
        a_backend_without_a_route_is_told;
    limits: a_silent_client_is_cut, nothing_moves_for_too_long, a_deaf_backend_is_passed_over,
        more_than_the_most_wait;
    deaths: a_killed_backend_is_an_end_and_the_next_one_serves,
        after_a_killed_proxy_the_next_one_serves, descriptors_that_run_out_are_told_and_come_back,
        a_crowd_with_few_descriptors_is_served_or_reset;
    signals: what_is_under_way_is_ended_in_order, the_rest_is_cut_after_the_drain,
        who_waits_to_be_let_in_is_served_before_the_end, a_second_signal_ends_at_once,
        counts_are_told_when_asked;
    addresses: one_address_does_not_hold_all_handshakes, a_handshake_has_a_total_time_limit,
        backends_are_told_the_client;
    privileges: all_threads_run_as_the_user, all_threads_are_restricted;
}

// `tls` is what depends on no network path. The stack's driver has the channel's conformance suite,
// and its devices have tests of their own; what depends on the stack runs over one of them.
on! {
    tls Uring: {
        streams: both_versions_are_spoken_and_sessions_resumed;
        refusals: plain_http_gets_an_alert, garbage_is_refused, a_change_on_the_way_is_noticed;
        negotiation: only_a_protocol_that_both_speak_is_agreed_on, every_name_gets_the_certificate,
            a_session_of_another_process_is_not_resumed;
        reload: a_new_certificate_is_for_new_connections, a_wrong_file_leaves_the_old_certificate;
    }
    xdp Xdp: {
        web: curl_gets_every_byte;
        streams: each_direction_ends_by_itself, a_slow_reader_holds_the_other_end_back,
            many_streams_at_once;
        refusals: a_backend_without_a_route_is_told;
        deaths: after_a_killed_proxy_the_next_one_serves;
        addresses: backends_are_told_the_client;
        privileges: all_threads_are_restricted;
    }
    tap Tap: {
        web: ab_finds_no_failure;
        streams: a_backend_that_resets_resets_the_client, both_families;
        limits: a_deaf_backend_is_passed_over;
        deaths: descriptors_that_run_out_are_told_and_come_back;
        signals: who_waits_to_be_let_in_is_served_before_the_end;
        addresses: one_address_does_not_hold_all_handshakes;
        privileges: all_threads_run_as_the_user;
    }
}
