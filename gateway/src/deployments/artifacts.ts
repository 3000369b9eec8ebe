/**
 * Results of builds in the data directory: what a run sandbox is made of. Kept while the deployment may need a sandbox, so
 * that neither a restart of the gateway nor the loss of a sandbox needs another build. A project without a build has none; its
 * upload takes the place.
 */
import { randomBytes } from 'node:crypto'
import { createReadStream, createWriteStream } from 'node:fs'
import { access, mkdir, readdir, rename, rm, stat } from 'node:fs/promises'
import path from 'node:path'
import { pipeline } from 'node:stream/promises'
import { syncFolder } from '@warren/kit/files'
import type { DeploymentRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import { IS_UNFINISHED } from '../projects/statuses.ts'
import type { Sweep } from '../sweep.ts'
import { uploadFile } from '../uploads/store.ts'
import { DeploymentFailure } from './failure.ts'

/** A build writes its result some moments before the row says so. */
const UNUSED_AGE_MS = 3_600_000

const folderOf = (deps: Pick<Deps, 'config'>): string => path.join(deps.config.dataDir, 'artifacts')
const fileOf = (deps: Pick<Deps, 'config'>, deploymentId: string): string =>
  path.join(folderOf(deps), `${deploymentId}.tar.gz`)

export const hasArtifact = (deps: Deps, { id }: Pick<DeploymentRow, 'id'>): Promise<boolean> =>
  access(fileOf(deps, id)).then(
    () => true,
    () => false,
  )

/** Complete or absent. Throws a DeploymentFailure for a result that is too large. */
export async function storeArtifact(
  deps: Deps,
  { id }: DeploymentRow,
  content: AsyncIterable<Uint8Array>,
  signal: AbortSignal,
): Promise<number> {
  const folder = folderOf(deps)
  await mkdir(folder, { recursive: true, mode: 0o700 })
  const temporary = path.join(folder, `.${id}.${randomBytes(6).toString('hex')}`)
  try {
    await pipeline(
      content,
      limitTo(deps.config.resultMaxBytes),
      createWriteStream(temporary, { mode: 0o600, flush: true }),
      { signal },
    )
    await rename(temporary, fileOf(deps, id))
  } catch (error) {
    await rm(temporary, { force: true })
    throw error
  }
  await syncFolder(folder)
  return (await stat(fileOf(deps, id))).size
}

/** A build may write whatever it likes into its sandbox, but not as much as it likes onto this machine. */
const limitTo = (maxBytes: number) =>
  async function* (chunks: AsyncIterable<Uint8Array>): AsyncGenerator<Uint8Array> {
    let bytes = 0
    for await (const chunk of chunks) {
      bytes += chunk.length
      if (bytes > maxBytes) throw new DeploymentFailure(`the result of the build is larger than ${maxBytes} bytes`)
      yield chunk
    }
  }

/** What the run sandbox is made of. */
export async function openResult(deps: Deps, deployment: DeploymentRow): Promise<() => AsyncIterable<Uint8Array>> {
  const file = (await hasArtifact(deps, deployment))
    ? fileOf(deps, deployment.id)
    : uploadFile(deps, deployment.upload_digest)
  return () => createReadStream(file)
}

export const deleteArtifact = (deps: Deps, deploymentId: string): Promise<void> =>
  rm(fileOf(deps, deploymentId), { force: true })

/** Of deployments that failed or were replaced, and of writes that were interrupted. */
export const deleteUnusedArtifacts: Sweep = {
  name: 'delete-unused-artifacts',
  everyMs: 600_000,
  async run(deps) {
    const names = await readdir(folderOf(deps)).catch(() => [] as string[]) // Nothing was built yet.
    for (const name of names) {
      const file = path.join(folderOf(deps), name)
      const found = await stat(file).catch(() => undefined)
      if (!found || deps.now().getTime() - found.mtimeMs < UNUSED_AGE_MS) continue
      if (!(await isNeeded(deps, name.replace(/\.tar\.gz$/, '')))) await rm(file, { force: true })
    }
  },
}

/** Unfinished deployments, and those that are served. */
async function isNeeded(deps: Deps, deploymentId: string): Promise<boolean> {
  if (!/^[0-9a-f-]{36}$/.test(deploymentId)) return false
  const row = await deps.db
    .selectFrom('gateway.deployments as d')
    .innerJoin('gateway.projects as p', 'p.id', 'd.project_id')
    .select('d.id')
    .where('d.id', '=', deploymentId)
    .where('p.status', '!=', 'deleting')
    .where((or) => or.or([or('d.status', 'in', IS_UNFINISHED), or('p.live_deployment_id', '=', or.ref('d.id'))]))
    .executeTakeFirst()
  return row !== undefined
}
