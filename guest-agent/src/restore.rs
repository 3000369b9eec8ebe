//! POST /wake: sets the clock, entropy and identity of a restored machine in one round trip, before any user program
//! runs.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::agent::Agent;
use crate::clock::{ClockRequest, ClockResponse, set_clock};
use crate::entropy::{EntropyResponse, add_entropy, parse_hex};
use crate::identity::{IdentityRequest, IdentityResponse, apply_on_worker};
use crate::mounts;
use crate::ready::{AGENT_INFO, AgentInfo};
use crate::reply::{Failure, HandlerResult};
use crate::spans::step;

#[derive(Deserialize)]
pub struct RestoreRequest {
    clock: Option<ClockRequest>,
    /// At least 32 bytes as hex.
    entropy: Option<String>,
    identity: Option<IdentityRequest>,
}

#[derive(Serialize)]
pub struct RestoreResponse {
    agent: AgentInfo,
    #[serde(skip_serializing_if = "Option::is_none")]
    clock: Option<ClockResponse>,
    #[serde(skip_serializing_if = "Option::is_none")]
    entropy: Option<EntropyResponse>,
    #[serde(skip_serializing_if = "Option::is_none")]
    identity: Option<IdentityResponse>,
}

/// Also drops pending self-signals: a requested pause has happened, and the requests of a clone's template are not its
/// own.
///
/// The order matters: files written for the identity then have the right time, and their random names differ between
/// clones.
pub async fn finish_restore(agent: &Arc<Agent>, request: RestoreRequest) -> HandlerResult<RestoreResponse> {
    let clock = step("clock", async { request.clock.as_ref().map(set_clock).transpose() }).await?;
    let entropy = step("entropy", async { request.entropy.as_deref().map(add_entropy_hex).transpose() }).await?;
    let is_new_machine = request.identity.as_ref().is_some_and(IdentityRequest::is_new_machine);
    agent.signals.clear_after_restore(is_new_machine);
    step("mounts", mounts::after_restore(agent, is_new_machine)).await;
    let identity = match request.identity {
        Some(identity) => Some(step("identity", apply_on_worker(agent, identity)).await?),
        None => None,
    };
    Ok(RestoreResponse { agent: AGENT_INFO, clock, entropy, identity })
}

fn add_entropy_hex(hex: &str) -> HandlerResult<EntropyResponse> {
    add_entropy(&parse_hex(hex).ok_or_else(|| Failure::invalid("entropy: must be hex"))?)
}
