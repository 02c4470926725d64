//! The bodies of the conformance suite: each takes the driver as its argument.

/// Calls a macro with the bodies that pass over every driver, `file: name, name; …`, after other
/// lines of that form.
macro_rules! every_driver {
    ($suite:ident! { $($others:tt)* }) => {
        $suite! {
            $($others)*
            accept:
                accept_one,
                accept_until_cancelled,
                accept_as_many_as_asked,
                counts_of_several_calls_add_up,
                connections_beyond_the_count_stay_queued,
                pending_tells_how_many_wait,
                lightweight_sockets_are_full_sockets,
                lightweight_sockets_have_options,
                accept_on_a_unix_listener,
                accepts_of_both_kinds_do_not_mix,
                the_kind_can_change_between_accepts,
                a_cancelled_accept_can_be_asked_again,
                an_accept_that_was_served_is_cancelled,
                accepts_that_come_and_go_lose_no_connection,
                a_listener_gives_back_what_it_accepted,
                a_listener_gives_back_what_came_in_mid_call,
                a_closed_listener_refuses,
                a_listener_of_both_families_maps_addresses,
                options_are_inherited_from_the_listener;
            ancillary:
                descriptors_arrive_over_every_socket,
                received_messages_are_passed_on,
                empty_messages_carry_descriptors,
                a_long_message_brings_its_descriptors_once,
                messages_keep_the_order_of_their_lane,
                tcp_takes_messages_without_descriptors,
                lightweight_sockets_carry_descriptors,
                the_most_descriptors,
                what_cannot_carry_descriptors_refuses_them,
                descriptors_without_room_are_told,
                a_packet_without_room_brings_its_descriptors,
                other_control_data_is_skipped,
                messages_are_cancelled,
                messages_have_their_time,
                messages_count_as_output,
                withdrawn_messages_leave_no_descriptors,
                stale_control_data_is_left_alone,
                transfers_carry_descriptors;
            buffers:
                a_returned_buffer_restarts_one_receive,
                a_burst_restarts_as_many_receives_as_there_are_buffers,
                a_receive_without_data_keeps_no_buffer_from_others;
            cancel:
                each_request_has_its_last_completion,
                nothing_to_cancel,
                a_result_may_be_quicker,
                a_repeating_watch_that_was_served_ends,
                a_repeating_receive_that_was_served_ends,
                a_write_in_progress_ends_with_what_is_written,
                a_receive_that_changes_its_buffers_ends,
                a_receive_that_waits_for_buffers_ends,
                requests_filed_after_a_cancel_are_carried_out,
                one_handle_is_cancelled_and_the_others_go_on,
                cancelling_again_changes_nothing,
                a_cancelled_read_takes_no_data,
                a_wait_after_a_cancel_lasts,
                a_write_to_a_peer_that_is_done_ends;
            close:
                a_dropped_channel_resets_what_it_has_not_written,
                a_close_writes_all_that_is_queued,
                connections_are_refused,
                an_unregistered_lightweight_socket_writes_what_is_queued,
                a_close_tells_the_error_of_a_queued_write,
                a_close_that_takes_too_long_aborts,
                an_abort_overtakes_a_stuck_write,
                an_abort_resets_an_idle_connection,
                a_flush_is_enough_for_the_end,
                a_flush_is_enough_for_listeners_and_pipes,
                the_close_is_the_last_event;
            connect:
                connect_succeeds,
                connect_over_ipv6,
                connect_a_datagram_socket,
                connect_to_unix_sockets,
                connect_refused,
                requests_wait_for_the_connect,
                a_cancelled_connect_takes_the_rest_with_it,
                a_second_connect_is_an_error,
                a_connect_to_a_full_unix_listener;
            connections:
                clients_wait_at_the_limit,
                many_closed_at_once_make_room_for_as_many,
                a_burst_is_cut_at_the_limit,
                the_limit_counts_for_all_listeners,
                what_the_application_holds_counts,
                accepts_are_counted_and_cancelled_at_the_limit;
            datagram:
                receive_one_with_its_address,
                receive_until_cancelled,
                send_to_an_address,
                an_echo_without_copies,
                both_directions_over_ipv6,
                the_largest_datagram,
                what_does_not_fit_is_truncated,
                empty_datagrams,
                reads_and_writes_keep_boundaries,
                a_datagram_too_large_is_refused,
                nobody_there,
                unix_datagrams_have_names,
                a_full_unix_socket_makes_senders_wait,
                a_full_queue_of_a_receiver_loses_nothing,
                datagrams_beyond_the_buffers_wait,
                many_sockets_at_once;
            files:
                files_have_a_position,
                reads_and_writes_at_offsets,
                many_offsets_at_once,
                vectored_files,
                a_large_file,
                files_open_for_appending,
                failures_of_files,
                timers_expire_once,
                timers_repeat,
                timers_count_what_was_missed,
                signals_arrive,
                each_signal_by_its_number,
                wakes_from_another_thread,
                wakes_are_counted_together,
                a_waker_ends_an_endless_wait,
                watched_sources_come_back,
                timers_are_set_anew;
            flow:
                queued_writes_to_a_slow_reader,
                short_writes_of_every_kind,
                an_echo_of_all_sizes,
                messages_grow_and_shrink,
                a_flood_into_few_buffers,
                leases_that_are_held_stop_the_flow,
                leases_held_by_one_stop_all_until_they_return,
                a_short_completion_queue,
                a_short_completion_queue_of_connections,
                idle_connections_do_not_hide_a_busy_one,
                many_requests_on_one_handle,
                connections_that_come_and_go,
                everything_at_once;
            foreign:
                a_poll_tells_what_is_there,
                a_poll_waits_for_what_is_not_there,
                a_repeating_poll_tells_each_edge,
                a_poll_tells_the_end,
                a_poll_leaves_the_data_to_others,
                a_cancelled_poll_ends,
                a_poll_goes_with_its_handle,
                polls_of_other_events_and_kinds_are_refused,
                a_listener_is_polled,
                memory_is_read_into_and_written_from,
                a_transfer_looks_without_taking,
                a_transfer_is_followed_by_another,
                transfers_at_offsets,
                vectored_transfers_are_whole,
                a_long_transfer_is_whole,
                transfers_without_room_are_refused,
                one_direction_is_cancelled,
                a_cancelled_receive_loses_nothing,
                the_peer_address_as_a_request;
            handles:
                settings_out_of_range_are_refused,
                cookies_are_kept,
                stale_handles_are_refused,
                handles_of_other_channels_are_refused,
                requests_suit_the_kind,
                a_refused_request_gives_its_buffer_back,
                the_limit_on_handles,
                the_limit_on_requests,
                an_accept_at_the_limit_on_requests,
                what_cannot_be_registered_comes_back,
                handles_are_those_registered_and_not_closed;
            lifecycle:
                dispatch_returns_in_time,
                a_signal_handler_ends_a_wait,
                broken_pipes_raise_no_signal,
                broken_sockets_raise_no_signal,
                a_batch_has_its_limit,
                a_batch_is_not_withdrawn,
                flush_starts_requests,
                unregister_withdraws_what_is_pending,
                unregister_withdraws_what_has_completed,
                unregister_drops_the_writes_not_begun,
                the_peer_of_an_unregistered_lightweight_socket_sees_the_end,
                close_tells_its_result,
                close_at_once_after_a_write,
                a_descriptor_outlives_its_handle,
                a_dropped_socket_is_closed,
                lightweight_sockets_of_another_channel_are_refused,
                leases_outlive_their_channel,
                dropping_with_everything_in_flight,
                a_peer_of_a_dropped_channel_sees_the_end,
                channels_come_and_go,
                counters_count;
            limits:
                an_inbound_request_is_over_time,
                a_datagram_is_over_time,
                each_completion_begins_the_time_anew,
                a_stuck_write_has_its_time_once,
                a_stuck_write_is_over_time,
                nothing_is_written_behind_a_stuck_write,
                a_request_that_waits_has_its_time_to_come,
                a_limit_is_taken_back_or_set_late,
                a_paused_receive_is_over_time,
                a_limit_goes_with_its_handle;
            linger:
                two_channels_that_both_close_with_much_queued_end,
                one_channel_closes_both_ends_with_much_queued,
                a_peer_that_reads_last_gets_all,
                a_peer_that_sends_for_ever_does_not_hold_the_handle,
                a_peer_that_stays_does_not_hold_the_handle,
                an_abort_overtakes_discarding,
                a_close_that_does_not_wait_discards_nothing;
            looks:
                a_peek_leaves_the_bytes,
                a_peek_at_messages,
                a_peek_can_be_cancelled_and_refused,
                a_peek_tells_of_a_reset,
                a_long_write_that_is_followed_is_written_whole,
                where_nothing_is_joined_it_is_a_plain_write;
            messages:
                packets_keep_their_bounds,
                a_packet_without_room_is_an_error,
                a_listener_brings_packet_sockets,
                a_restored_datagram_is_its_payload;
            outgoing:
                connections_of_every_family,
                the_socket_is_the_channels_own,
                a_refused_connection_can_be_tried_again,
                what_cannot_be_connected_is_refused,
                the_limit_on_lightweight_sockets,
                a_dropped_channel_ends_its_connections;
            output:
                a_pair_pauses_the_other_side,
                a_receive_pauses_while_output_waits,
                a_receive_resumes_when_the_output_is_cancelled,
                a_paused_receive_ends_with_its_handle,
                single_bytes_pause_a_receive_too,
                a_write_beyond_the_limit_gives_its_buffer_back,
                datagrams_beyond_the_limit_are_refused,
                leases_are_copied_when_they_are_crowded,
                a_thousand_stalled_readers_stop_no_other;
            packet_info:
                answers_leave_from_the_address_that_was_asked,
                a_broadcast_is_answered_from_an_own_address,
                without_the_option_there_is_no_packet_info,
                the_source_of_a_datagram_is_chosen,
                a_source_that_cannot_be_is_refused,
                cut_datagrams_are_told,
                unix_datagrams_are_answered,
                packet_info_is_found_among_others;
            peers:
                each_connection_brings_its_peer,
                peers_of_every_family,
                a_peer_that_is_gone_has_its_address,
                accepts_with_and_without_addresses_do_not_mix;
            send_file:
                a_file_is_sent_among_writes,
                a_close_sends_the_rest_of_the_file,
                a_file_that_shrinks_is_an_error,
                a_short_file_leaves_at_once,
                a_file_that_is_too_short_is_an_error,
                nothing_is_sent_behind_a_part,
                the_file_must_stay_registered,
                a_sent_file_can_be_cancelled,
                an_abort_and_a_drop_end_sent_files,
                only_disk_files_go_over_streams;
            signals:
                the_mask_is_restored_with_the_handle,
                a_signal_goes_to_one_of_two_channels;
            stream:
                read_appends_what_is_there,
                read_to_the_end,
                read_is_bounded_by_the_room,
                reads_and_writes_go_on_side_by_side,
                vectored_reads_and_writes,
                vectored_reads_fill_one_after_the_other,
                every_kind_of_buffer_is_written_in_order,
                an_empty_write_completes,
                receive_once_and_again,
                receive_until_the_end,
                an_echo_sends_from_leases,
                a_lease_is_written_in_part,
                pipes_carry_bytes,
                pipes_are_received_into_leases,
                a_broken_pipe_is_an_error,
                fifos_carry_bytes,
                a_terminal_carries_bytes,
                a_sequenced_packet_socket_keeps_messages,
                disconnect_follows_the_writes,
                disconnect_ends_pending_reads,
                disconnect_both_ways,
                a_reset_in_mid_message,
                a_reset_is_told_to_pending_reads,
                writes_to_a_vanished_peer_fail,
                linger_zero_resets,
                options_and_the_peer_address;
            stuck:
                a_write_without_a_reader_blocks_no_call,
                a_receive_does_not_outlive_its_handle,
                what_comes_after_an_unregister_is_still_there,
                a_duplicate_keeps_its_requests,
                a_terminal_is_blocking_again_when_it_leaves;
            told:
                a_reset_is_told_in_both_directions,
                what_was_written_is_told,
                a_poll_tells_only_what_was_asked_for,
                a_signal_ends_a_wait_that_steals,
                each_cancelled_accept_is_told_beyond_the_limit_on_requests;
            udp:
                segments_leave_as_datagrams,
                segments_arrive_joined,
                marks_travel_with_datagrams,
                an_unchanged_message_returns_in_the_same_segments,
                without_the_options_datagrams_are_plain,
                impossible_segments_are_refused,
                small_buffers_have_no_reports,
                joined_datagrams_may_be_truncated,
                an_option_holds_for_later_receives;
            withdrawn:
                a_cancelled_disconnect_does_nothing;
        }
    };
}

pub(crate) mod accept;
pub(crate) mod ancillary;
pub(crate) mod buffers;
pub(crate) mod cancel;
pub(crate) mod close;
pub(crate) mod connect;
pub(crate) mod connections;
pub(crate) mod datagram;
pub(crate) mod files;
pub(crate) mod flow;
pub(crate) mod foreign;
pub(crate) mod handles;
pub(crate) mod lifecycle;
pub(crate) mod limits;
pub(crate) mod linger;
pub(crate) mod looks;
pub(crate) mod messages;
pub(crate) mod outgoing;
pub(crate) mod output;
pub(crate) mod packet_info;
pub(crate) mod peers;
pub(crate) mod send_file;
pub(crate) mod signals;
pub(crate) mod stream;
pub(crate) mod stuck;
pub(crate) mod told;
pub(crate) mod udp;
pub(crate) mod withdrawn;
