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
/// which do no harm, and the server is asked again from time to time.
pub async fn probe_until_known(mount: &Mount) {
    while mount.tested_conditions.get() == Conditions::Unknown {
        let found = match try_conditions(mount).await {
            Ok(found) => Some(found),
            Err(failure) if matches!(failure.cause, Cause::Unsupported | Cause::Refused) => Some(Conditions::Refused),
            Err(_) => None,
        };
        mount.conditions.set(found.unwrap_or(Conditions::Ignored));
        mount.conditions_known.notify_waiters();
        match found {
            Some(found) => mount.tested_conditions.set(found),
            None => tokio::time::sleep(PROBE_PAUSE).await,
        }
    }
    mount.conditions_known.notify_waiters();
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

const PROBE_PAUSE: Duration = Duration::from_secs(10);

/// Removed at the end of the probe.
const PREFIX: &str = ".bucket-mount-probe-";
