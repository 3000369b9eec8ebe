//! Finds out whether the server honours conditions on writes.

use std::time::Duration;

use crate::md5::Md5;
use crate::mount::{Conditions, Mount};
use crate::random::random_id;
use crate::s3::client::Condition;
use crate::s3::connection::Body;
use crate::s3::failure::{Cause, Result};
use crate::s3::metadata::Metadata;

/// Sets `mount.conditions`. Until then, writes wait. If the server is away or refuses all writes, they continue with conditions,
/// which do no harm, and the server is asked again from time to time, and at once when the connection changes.
pub async fn probe_until_known(mount: &Mount) {
    let mut pause = FIRST_PAUSE;
    while mount.tested_conditions.get() == Conditions::Unknown {
        let connected = mount.connected.notified();
        let found = match try_conditions(mount).await {
            Err(failure) if matches!(failure.cause, Cause::Unsupported | Cause::Refused) => Ok(Conditions::Refused),
            found => found,
        };
        mount.conditions.set(found.as_ref().map_or(Conditions::Ignored, |found| *found));
        mount.conditions_known.notify_waiters();
        match found {
            Ok(found) => mount.tested_conditions.set(found),
            Err(failure) => {
                tokio::select! {
                    () = tokio::time::sleep(pause) => pause = next_pause(pause, failure.cause),
                    () = connected => pause = FIRST_PAUSE,
                }
            }
        }
    }
    mount.conditions_known.notify_waiters();
}

/// A server that is away comes back. One that refuses writes usually does so for as long as the disk is attached.
fn next_pause(pause: Duration, cause: Cause) -> Duration {
    match cause {
        Cause::Denied | Cause::ReadOnly => (pause * 3).min(REFUSED_PAUSE_MAX),
        _ => FIRST_PAUSE,
    }
}

async fn try_conditions(mount: &Mount) -> Result<Conditions> {
    let key = format!("{PREFIX}{}", random_id());
    let mut digest = Md5::default();
    digest.update(b"probe");
    let body = (Body::Bytes(b"probe"), digest.finish());
    let put = async |condition: Condition| mount.client.put(&key, body, &Metadata::default(), &condition).await;
    let result = async {
        put(Condition::Absent).await?;
        let second = put(Condition::Absent).await;
        let third = put(Condition::Matches("0".repeat(32))).await;
        let is_refused = |result: &Result<String>| matches!(result, Err(failure) if failure.cause == Cause::Conflict);
        match is_refused(&second) && is_refused(&third) {
            true => Ok(Conditions::Honoured),
            false => second.and(third).map(|_| Conditions::Ignored),
        }
    };
    let result = result.await;
    let _ = mount.client.delete(&key).await;
    result
}

const FIRST_PAUSE: Duration = Duration::from_secs(10);
const REFUSED_PAUSE_MAX: Duration = Duration::from_secs(600);

/// Removed at the end of the probe.
const PREFIX: &str = ".bucket-mount-probe-";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_refuses_writes_is_asked_less_and_less_often() {
        let mut pauses = vec![FIRST_PAUSE];
        for _ in 0..6 {
            pauses.push(next_pause(*pauses.last().unwrap_or(&FIRST_PAUSE), Cause::Denied));
        }

        let seconds: Vec<u64> = pauses.iter().map(Duration::as_secs).collect();
        assert_eq!(seconds, [10, 30, 90, 270, 600, 600, 600]);
        assert_eq!(next_pause(REFUSED_PAUSE_MAX, Cause::Unavailable), FIRST_PAUSE);
    }
}
