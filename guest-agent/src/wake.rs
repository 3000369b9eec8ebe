//! POST /wake: all a fresh clone needs before a user's byte runs in it, in one round trip: clock, entropy, identity.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::agent::Agent;
use crate::clock::{ClockAnswer, ClockRequest, set_clock};
use crate::entropy::{EntropyAnswer, add_entropy, parse_hex};
use crate::identity::{IdentityAnswer, IdentityRequest, apply_on_worker};
use crate::reply::{Done, Failure};

#[derive(Deserialize)]
pub struct WakeRequest {
    clock: Option<ClockRequest>,
    /// Hex of at least 32 bytes.
    entropy: Option<String>,
    identity: Option<IdentityRequest>,
}

#[derive(Serialize)]
pub struct WakeAnswer {
    #[serde(skip_serializing_if = "Option::is_none")]
    clock: Option<ClockAnswer>,
    #[serde(skip_serializing_if = "Option::is_none")]
    entropy: Option<EntropyAnswer>,
    #[serde(skip_serializing_if = "Option::is_none")]
    identity: Option<IdentityAnswer>,
}

/// A machine is woken after it was paused: what it asked for before has happened, or was asked by somebody else.
///
/// In this order: files made for the identity then carry the right time, and their random names are this clone's own.
pub async fn wake(agent: &Arc<Agent>, wanted: WakeRequest) -> Done<WakeAnswer> {
    let clock = wanted.clock.as_ref().map(set_clock).transpose()?;
    let entropy = match &wanted.entropy {
        Some(hex) => Some(add_entropy(&parse_hex(hex).ok_or_else(|| Failure::invalid("entropy: hex"))?)?),
        None => None,
    };
    let is_another = wanted.identity.as_ref().is_some_and(IdentityRequest::is_another_machine);
    agent.signals.forget(is_another);
    let identity = match wanted.identity {
        Some(identity) => Some(apply_on_worker(agent, identity).await?),
        None => None,
    };
    Ok(WakeAnswer { clock, entropy, identity })
}
