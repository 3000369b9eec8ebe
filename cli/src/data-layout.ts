/**
 * Where the services keep their files in the data directory. Started by root, the control plane owns the folder
 * `control-plane`. Its keys are there:
 *
 *   local.key, gateway.key   with copies in the data directory itself, which belong to root and are what everything else
 *                            reads. A key that was put there before a start is given to the control plane.
 *   secrets.key              which an earlier version stored in the data directory itself. A link leads to it.
 */
import { lstat, mkdir, readFile, readlink, rename, rm, symlink } from 'node:fs/promises'
import path from 'node:path'
import { readServiceFile } from '@warren/kit/confine/read-service-file'
import { syncFolder, writeFileDurably } from '@warren/kit/files'
import { CONTROL_PLANE_FOLDER, type InstanceConfig } from './config.ts'

const API_KEYS = ['local.key', 'gateway.key']
const SECRETS_KEY = 'secrets.key'
const LINK_TO_SECRETS_KEY = `${CONTROL_PLANE_FOLDER}/${SECRETS_KEY}`
/** What `warren env` prints is run by shells. */
const API_KEY = /^skp_[0-9a-f]{64}\n$/

export const isRoot = (): boolean => process.getuid?.() === 0

export const controlPlaneFolder = ({ dataDir }: InstanceConfig): string => path.join(dataDir, CONTROL_PLANE_FOLDER)

/** Where the control plane finds the API key of a service user. */
export const serviceKeyFile = (config: InstanceConfig, file: string): string =>
  isRoot() ? path.join(controlPlaneFolder(config), path.basename(file)) : file

/** To be called by root, before any service runs. Repeatable at any point. */
export async function giveKeys(config: InstanceConfig): Promise<void> {
  const { dataDir } = config
  const folder = controlPlaneFolder(config)
  await mkdir(folder, { recursive: true, mode: 0o700 })
  for (const name of API_KEYS) {
    const found = await findEntry(path.join(dataDir, name))
    if (found?.isFile())
      await writeFileDurably(path.join(folder, name), await readFile(path.join(dataDir, name), 'utf8'))
  }
  const [old, current] = [path.join(dataDir, SECRETS_KEY), path.join(folder, SECRETS_KEY)]
  const found = await findEntry(old)
  if (found?.isFile()) await rename(old, current)
  if (found?.isSymbolicLink() && (await readlink(old)) !== LINK_TO_SECRETS_KEY) {
    // A link of the operator. What it leads to stays as it is, but is not used any longer.
    await writeFileDurably(current, await readFile(old, 'utf8'))
    await rm(old)
  }
  await syncFolder(folder)
  await symlink(LINK_TO_SECRETS_KEY, old).catch((error: NodeJS.ErrnoException) => {
    if (error.code !== 'EEXIST') throw error
  })
  await syncFolder(dataDir)
}

/** Copies the API keys that the control plane has written. */
export async function publishKeys(config: InstanceConfig): Promise<void> {
  if (!isRoot()) return
  for (const name of API_KEYS) {
    const key = await readServiceFile(path.join(controlPlaneFolder(config), name)).catch((error) => {
      if (error.code === 'ENOENT') return undefined // Without a gateway there is no key for it.
      throw error
    })
    if (key === undefined) continue
    if (!API_KEY.test(key)) throw new Error(`the control plane has written something to ${name} that is no API key`)
    const file = path.join(config.dataDir, name)
    if ((await readFile(file, 'utf8').catch(() => '')) !== key) await writeFileDurably(file, key)
  }
}

/** The folder of the development chain was inside the one of the gateway. */
export async function moveChain({ chainDir, gatewayDir }: InstanceConfig): Promise<void> {
  const old = path.join(gatewayDir, 'chain')
  const [parent, found, current] = await Promise.all([gatewayDir, old, chainDir].map(findEntry))
  // Only if the gateway has never owned the folder around it: otherwise it could have put anything there.
  if (parent?.uid !== process.getuid?.() || !found?.isDirectory() || current !== undefined) return
  await rename(old, chainDir)
}

/** Of earlier versions. */
export const removeOldSocket = ({ dataDir }: InstanceConfig): Promise<void> =>
  rm(path.join(dataDir, 'host.sock'), { force: true })

async function findEntry(file: string) {
  return lstat(file).catch((error: NodeJS.ErrnoException) => {
    if (error.code === 'ENOENT' || error.code === 'ENOTDIR') return undefined
    throw error
  })
}
