/**
 * Packed uploads in the data directory, named by their digest, so that equal uploads are stored once.
 *
 * The transaction that refers to an upload locks its digest before it stores the file, and one that deletes the file locks it
 * too: a file is not deleted between the moment at which it is found to exist and the row that refers to it.
 */
import { randomBytes } from 'node:crypto'
import { access, mkdir, open, readdir, rename, rm, stat } from 'node:fs/promises'
import path from 'node:path'
import { diskLevels, findShortage, readDiskSpace } from '@warren/kit/disk-space'
import { unavailable } from '@warren/kit/failure'
import { syncFolder } from '@warren/kit/files'
import { sql } from 'kysely'
import type { Tx } from '../db/connect.ts'
import type { Deps } from '../deps.ts'
import { IS_UNFINISHED } from '../projects/statuses.ts'
import type { Sweep } from '../sweep.ts'

/** Files that are being written have other names. */
const UNUSED_AGE_MS = 3_600_000

const folderOf = (deps: Pick<Deps, 'config'>): string => path.join(deps.config.dataDir, 'uploads')

export const uploadFile = (deps: Pick<Deps, 'config'>, digest: string): string =>
  path.join(folderOf(deps), `${digest}.tar.gz`)

/** `tx` writes the row that refers to it. */
export async function storeUpload(
  tx: Tx,
  deps: Pick<Deps, 'config'>,
  digest: string,
  archive: Uint8Array,
): Promise<void> {
  await sql`select pg_advisory_xact_lock_shared(hashtextextended(${digest}, 0))`.execute(tx)
  const file = uploadFile(deps, digest)
  const folder = folderOf(deps)
  await mkdir(folder, { recursive: true, mode: 0o700 })
  if (await exists(file)) return
  await checkSpace(deps, folder)
  const temporary = path.join(folder, `.${digest}.${randomBytes(6).toString('hex')}`)
  try {
    const handle = await open(temporary, 'wx', 0o600)
    try {
      await handle.writeFile(archive)
      await handle.sync()
    } finally {
      await handle.close()
    }
    await rename(temporary, file)
  } catch (error) {
    await rm(temporary, { force: true })
    throw new Error('failed to store an upload in the data directory', { cause: error })
  }
  await syncFolder(folder)
}

async function checkSpace({ config }: Pick<Deps, 'config'>, folder: string): Promise<void> {
  const space = readDiskSpace(folder)
  const shortage = findShortage(space, diskLevels(space, config.diskFloorMib))
  if (shortage !== undefined)
    throw unavailable('the disk of the gateway is nearly full', { cause: new Error(shortage) })
}

/** Unless a deployment needs it. */
export async function deleteUpload(deps: Deps, digest: string): Promise<void> {
  await deps.db.transaction().execute(async (tx) => {
    await sql`select pg_advisory_xact_lock(hashtextextended(${digest}, 0))`.execute(tx)
    if (!(await isNeeded(tx, digest))) await rm(uploadFile(deps, digest), { force: true })
  })
}

/** Of deployments that failed or were replaced, and of writes that were interrupted. */
export const deleteUnusedUploads: Sweep = {
  name: 'delete-unused-uploads',
  everyMs: 600_000,
  async run(deps) {
    const folder = folderOf(deps)
    const names = await readdir(folder).catch(() => [] as string[]) // Nothing was uploaded yet.
    for (const name of names) {
      const file = path.join(folder, name)
      const found = await stat(file).catch(() => undefined)
      if (!found || deps.now().getTime() - found.mtimeMs < UNUSED_AGE_MS) continue
      if (name.startsWith('.')) await rm(file, { force: true })
      else await deleteUpload(deps, name.replace(/\.tar\.gz$/, ''))
    }
  },
}

/** By deployments that are unfinished, and by those that are served: their sandbox may have to be made again. */
async function isNeeded(tx: Tx, digest: string): Promise<boolean> {
  const used = await tx
    .selectFrom('gateway.deployments as d')
    .innerJoin('gateway.projects as p', 'p.id', 'd.project_id')
    .select('d.id')
    .where('d.upload_digest', '=', digest)
    .where('p.status', '!=', 'deleting')
    .where((or) => or.or([or('d.status', 'in', IS_UNFINISHED), or('p.live_deployment_id', '=', or.ref('d.id'))]))
    .limit(1)
    .executeTakeFirst()
  return used !== undefined
}

const exists = (file: string): Promise<boolean> =>
  access(file).then(
    () => true,
    () => false,
  )
