#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods)] // stands outside: drives real doors with threads and sockets
//! What every driver does, whatever kernel interface it uses, seen through the real `Env`.
//!
//! A driver is put into the suite with one line at the end of this file. The other side of a
//! stream is a second `Env` or an ordinary blocking socket.

mod hand_over;
mod process;
mod refused;
mod rings;
mod streams;
mod tiny;
mod wake_ups;
mod world;

macro_rules! cases {
    ($driver:ty, $net:expr; $($module:ident: $($case:ident)*;)*) => {
        $($(
            #[test]
            fn $case() {
                crate::$module::$case::<$driver>($net);
            }
        )*)*
    };
}

macro_rules! suite {
    ($name:ident, $driver:ty) => {
        mod $name {
            suite!(@net tcp, $driver, crate::world::Net::Tcp);
            suite!(@net unix, $driver, crate::world::Net::Unix);

            mod doors {
                cases! { $driver, ();
                    wake_ups: no_wake_up_is_lost_parking no_wake_up_is_lost_adaptive
                        no_wake_up_is_lost_spinning mail_keeps_its_order_per_pair
                        poll_waits_until_the_instant_and_no_less
                        one_instant_ends_every_wait_for_it store_answers_come_back
                        mail_of_a_core_that_ended_is_dropped bad_numbers_of_cores_are_refused;
                    process: descriptors_are_back_at_the_baseline running_out_of_descriptors
                        stops_and_continues_lose_nothing
                        a_killed_listener_leaves_a_path_that_can_be_used_again;
                }
            }
        }
    };
    (@net $net:ident, $driver:ty, $value:expr) => {
        mod $net {
            cases! { $driver, $value;
                streams: bytes_arrive_whole_and_in_order_both_ways
                    unsent_bytes_are_exactly_what_the_kernel_did_not_take
                    a_long_write_to_a_slow_reader_ends_with_nothing_unsent
                    frames_survive_a_peer_that_moves_one_byte_at_a_time
                    a_reset_in_the_middle_of_a_frame_closes_once
                    writing_to_a_peer_that_left_closes_once_after_what_it_sent
                    nothing_follows_a_close nothing_follows_a_close_while_dialling
                    a_flush_brings_the_last_bytes_over a_dial_that_fails_says_so_once
                    writes_while_dialling_wait one_poll_gives_one_event_per_stream_and_is_fair
                    frames_of_16_mib_pass_both_ways
                    a_descriptor_used_again_brings_nothing_of_its_old_stream
                    stop_listening_keeps_streams the_end_of_a_core_closes_its_streams;
                hand_over: unread_and_unsent_bytes_move_in_order to_itself while_dialling
                    to_a_core_that_is_not_there of_a_stream_whose_peer_left
                    of_a_half_closed_stream_that_is_blocked
                    again_and_again_under_traffic;
            }
        }
    };
}

suite!(epoll, homing::transport::epoll::Epoll);
suite!(uring, homing::transport::uring::Uring);
suite!(tiny_uring, crate::tiny::Tiny);
