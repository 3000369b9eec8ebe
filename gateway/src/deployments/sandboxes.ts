/**
 * The sandboxes of deployments. A row is written before a sandbox is created and deleted after it was destroyed. Which of them
 * are still needed follows from the rows of deployments and projects (sweep-sandboxes.ts).
 */
import { setTimeout as delay } from 'node:timers/promises'
import { crashPoint } from '@warren/kit/crash-point'
import type { SandboxCreateBody } from '@warren/protocol'
import { isTransient } from '../control-plane/client.ts'
import { ControlPlaneError } from '../control-plane/error.ts'
import type { SandboxRole } from '../db/schema.ts'
import { DeploymentFailure } from './failure.ts'
import { ClaimLost, type Work } from './work.ts'

/** Sandboxes of the gateway, by which a sweep knows them. */
export const NAME_PREFIX = 'gw-'
/** From the request to a running sandbox. */
const CREATE_LIMIT_MS = 60_000
const RETRY_MS = 2_000
const IMAGE_RETRY_MS = 15_000

export type WorkSandbox = { name: string; id: string }

export async function createSandbox(
  work: Work,
  role: SandboxRole,
  settings: Omit<SandboxCreateBody, 'name'>,
): Promise<WorkSandbox> {
  const { deps, deployment, signal } = work
  const { id: deployment_id, project_id, attempt } = deployment
  const name = `${NAME_PREFIX}${project_id}-${role}-${deployment_id.slice(0, 8)}-${attempt}`
  await deps.db
    .insertInto('gateway.sandboxes')
    .values({ name, sandbox_id: null, project_id, deployment_id, role, attempt, process_id: null, drain_until: null })
    .onConflict((conflict) => conflict.doNothing())
    .execute()
  await crashPoint(`${role}.sandbox.intended`)
  const id = await createUntilDone(work, { ...settings, name })
  await crashPoint(`${role}.sandbox.created`)
  const { numUpdatedRows } = await deps.db
    .updateTable('gateway.sandboxes')
    .set({ sandbox_id: id })
    .where('name', '=', name)
    .executeTakeFirstOrThrow()
  // The deployment was cancelled, and a sweep did not find the sandbox in time.
  if (numUpdatedRows === 0n) {
    await deps.controlPlane.destroySandbox(id)
    throw new ClaimLost('the deployment was cancelled')
  }
  signal.throwIfAborted()
  return { name, id }
}

/** Waits for room, and for a control plane that restarts. A create whose answer was lost is found by its name. */
async function createUntilDone(work: Work, body: SandboxCreateBody): Promise<string> {
  const { controlPlane, log } = work.deps
  const deadline = Date.now() + CREATE_LIMIT_MS
  for (;;) {
    try {
      return (await controlPlane.createSandbox(body, work.signal)).id
    } catch (error) {
      if (!(error instanceof ControlPlaneError)) throw error
      if (error.code === 'name_in_use' || error.status === 0) {
        const found = (await controlPlane.listSandboxes()).find((one) => one.name === body.name)
        if (found?.status === 'running') return found.id
      } else if (!isTransient(error)) {
        log.error({ err: error }, 'the control plane refused to create a sandbox')
        throw new DeploymentFailure(error.message, { cause: error })
      }
      log.warn({ err: error, sandbox: body.name }, 'failed to create a sandbox')
      // The time limit of the deployment holds.
      if (isBeingBuilt(error)) {
        work.log.note(`waiting: ${error.message}`)
        await delay(IMAGE_RETRY_MS, undefined, { signal: work.signal })
      } else if (Date.now() > deadline) {
        const text = `no sandbox was available within ${CREATE_LIMIT_MS / 1000} s`
        throw new DeploymentFailure(`${text}: ${error.message}`, { cause: error })
      }
    }
    await delay(RETRY_MS, undefined, { signal: work.signal })
  }
}

/** After the first start on a machine, images are built in the background. */
const isBeingBuilt = (error: ControlPlaneError): boolean => error.message.includes('still being built')
