//! Tests channels that need root, strace(1), other client programs, or the crates' example
//! programs.

#[macro_use]
#[path = "../../../../crates/megapipe/tests/common/mod.rs"]
mod common;
#[path = "../../../../crates/megapipe/tests/bodies/devices.rs"]
mod devices;
#[path = "../../../../crates/megapipe/tests/bodies/model.rs"]
mod model;

#[path = "../capi/clients.rs"]
mod clients;
mod crowd;
mod examples;
mod process_1;
mod quota;
mod readme;
mod runtime_examples;
mod system_calls;

conformance! {
    crowd:
        ten_thousand_connections;
    devices:
        long_frames_of_a_tun_device_are_whole,
        an_overrun_of_netlink_is_told;
    examples:
        a_proxy_passes_bytes_ends_and_resets_on,
        servers_go_on_whatever_their_clients_do,
        ping_pong_returns_messages,
        udp_echo_returns_datagrams,
        udp_echo_goes_on_whatever_its_clients_do,
        copy_file_copies,
        ticks_end_by_themselves,
        ticks_end_on_signals;
    model:
        sequences_of_requests,
        sequences_with_few_resources;
    process_1:
        a_child_that_is_process_1_of_a_namespace;
    readme:
        a_client_that_half_closes_gets_all_back,
        clients_beyond_the_descriptors_are_served_when_others_close,
        a_client_that_does_not_read_stops_no_other,
        fifty_clients_that_do_not_read_take_little_memory,
        a_killed_server_starts_again_at_once,
        socat_gets_all_back,
        ncat_gets_all_back,
        curl_talks_to_it;
    runtime_examples:
        a_signal_lists_the_tasks,
        the_console_answers_lines_and_signals,
        the_console_ends_with_its_input;
    system_calls:
        every_system_call_is_counted;
}
