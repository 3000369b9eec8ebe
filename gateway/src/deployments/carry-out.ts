/**
 * Carries a deployment out, from the upload to an app that is served:
 *
 *   queued     waits for a place (claim.ts)
 *   pending    the project is examined, a build sandbox is created
 *   building   install and build commands, or the steps of a Dockerfile; the result is stored (build.ts)
 *   deploying  a run sandbox is made of the result, the app is started, and must answer (release.ts)
 *   promoting  the route is switched (promote.ts)
 *   active     the app is served and supervised (supervise.ts)
 *
 * A project without install and build commands needs no build sandbox: its upload is the result.
 *
 * Every step can be repeated. After a crash another claim begins at the last status whose result is stored: with the result of
 * a build there is no second build, and sandboxes of the attempt before are destroyed by a sweep. Too many attempts, or too
 * much time, fail the deployment with a reason.
 */
import { crashPoint } from '@warren/kit/crash-point'
import { ControlPlaneError } from '../control-plane/error.ts'
import type { DeploymentRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import { uploadFile } from '../uploads/store.ts'
import { hasArtifact } from './artifacts.ts'
import { buildProject } from './build.ts'
import { examineUpload } from './detect/examine.ts'
import { readImages } from './detect/images.ts'
import { DeploymentFailure } from './failure.ts'
import { type CommandBuild, type DockerfileBuild, type Plan, PlanError } from './plan.ts'
import { promote } from './promote.ts'
import { readRelease, releaseApp } from './release.ts'
import { ClaimLost, keepClaim, moveDeployment, openWork, Stopping, type Work } from './work.ts'

const ATTEMPTS_MAX = 5

/** Never throws for a reason of the deployment. `stop` aborts when the process stops. */
export async function carryOut(deps: Deps, deployment: DeploymentRow, stop: AbortSignal): Promise<void> {
  const controller = new AbortController()
  const stopNow = () => controller.abort(new Stopping('the gateway stops'))
  stop.addEventListener('abort', stopNow)
  if (stop.aborted) stopNow()
  const deadline = setTimeout(
    () => controller.abort(new DeploymentFailure(`the deployment took longer than ${deps.config.deploySeconds} s`)),
    remainingMs(deps, deployment),
  )
  const kept = keepClaim(deps, deployment, controller)
  let work: Work | undefined
  try {
    work = await openWork(deps, deployment, controller.signal)
    await runSteps(work)
    observe(deps, deployment, 'ready')
    work.log.note('the app is served')
  } catch (error) {
    const cause = controller.signal.aborted ? controller.signal.reason : error
    if (cause instanceof Stopping) await releaseClaim(deps, deployment)
    else if (!(cause instanceof ClaimLost)) await fail(deps, deployment, work, cause)
  } finally {
    clearTimeout(deadline)
    stop.removeEventListener('abort', stopNow)
    controller.abort(new ClaimLost('the work has ended'))
    await kept
    await work?.log.flush()
  }
}

const remainingMs = ({ config, now }: Deps, { started_at }: DeploymentRow): number =>
  Math.max((started_at ?? now()).getTime() + config.deploySeconds * 1_000 - now().getTime(), 0)

async function runSteps(work: Work): Promise<void> {
  const { deps, deployment } = work
  if (deployment.attempt > ATTEMPTS_MAX) throw new DeploymentFailure(`it was interrupted ${ATTEMPTS_MAX} times`)
  if (deployment.attempt > 1) work.log.note('the gateway was restarted; the deployment continues')
  const plan = await examine(work)
  if (hasBuild(plan) && !(await hasArtifact(deps, deployment))) await buildProject(work, plan)
  const { image, run, port } = plan
  await moveDeployment(work, 'deploying', { image, run: JSON.stringify(run), port })
  await crashPoint('deploy.begun')
  await releaseApp(work, { image, run, port })
  await promote(work)
}

const hasBuild = (plan: Plan): plan is Plan & { build: CommandBuild | DockerfileBuild } => plan.build !== undefined

async function examine({ deps, deployment, secrets, log }: Work): Promise<Plan> {
  const plan = await examineUpload({
    file: uploadFile(deps, deployment.upload_digest),
    settings: deployment.settings,
    buildVars: secrets.buildVars ?? {},
    images: readImages(deps.config),
  })
  // A stored plan wins: the images of the operator may have changed since the build.
  const stored = readRelease(deployment)
  for (const note of plan.notes) log.note(note)
  return stored ? { ...plan, ...stored } : plan
}

/** The reason names the cause, and ends with the newest output of the project. */
async function fail(deps: Deps, deployment: DeploymentRow, work: Work | undefined, cause: unknown): Promise<void> {
  const isExpected = cause instanceof DeploymentFailure || cause instanceof PlanError
  if (!isExpected) deps.log.error({ err: cause, deployment: deployment.id }, 'a deployment failed unexpectedly')
  const text = isExpected ? cause.message : explainUnexpected(cause)
  const lines = work?.log.tail() ?? []
  const reason = work?.log.clean([text, ...lines].join('\n')) ?? text
  work?.log.note(`failed: ${text}`)
  try {
    const target = work ?? (await openWork(deps, deployment, new AbortController().signal))
    await moveDeployment(target, 'failed', { reason })
    observe(deps, deployment, 'failed')
  } catch (error) {
    if (error instanceof ClaimLost) return
    deps.log.error({ err: error, deployment: deployment.id }, 'failed to record the failure of a deployment')
  }
}

function observe({ metrics, now }: Deps, { started_at }: DeploymentRow, outcome: 'ready' | 'failed'): void {
  metrics.deployments.observe({ outcome }, (now().getTime() - (started_at ?? now()).getTime()) / 1000)
}

const explainUnexpected = (cause: unknown): string =>
  cause instanceof ControlPlaneError ? cause.message : 'the gateway failed; deploy again'

/** So that the next process continues at once. */
async function releaseClaim(deps: Deps, { id, attempt }: DeploymentRow): Promise<void> {
  await deps.db
    .updateTable('gateway.deployments')
    .set({ claimed_by: null, claimed_until: null })
    .where('id', '=', id)
    .where('claimed_by', '=', deps.processId)
    .where('attempt', '=', attempt)
    .execute()
}
