/** `warren disks`: registers buckets of S3 stores and attaches them to sandboxes. */
import { setTimeout as delay } from 'node:timers/promises'
import { renderTable } from '@warren/kit/table'
import { warrenCommand } from '@warren/kit/warren-command'
import type { DiskAttachmentView, DiskDetachView, DiskView, Page } from '@warren/protocol'
import { type Api, callApi, getApi, getSandboxId } from '../api.ts'
import { type CredentialOptions, readCredentials } from './credentials.ts'

const PAGE_ITEMS = 500
const POLL_MS = 500
/** A store that does not answer is reported as failed before. */
const MOUNT_LIMIT_MS = 120_000

type AddOptions = CredentialOptions & { bucket: string; endpoint: string; region?: string; pathStyle?: true }

export async function addDisk(name: string, options: AddOptions): Promise<void> {
  const { bucket, endpoint, region, pathStyle } = options
  const credentials = await readCredentials(options)
  const config = { bucket, endpoint, region, use_path_style: pathStyle }
  const api = await getApi()
  const disk = await callApi<DiskView>(api, 'POST', '/v1/disks', { name, kind: 's3', config, credentials })
  print(
    `${disk.name} is registered: ${disk.id}. Attach it with: ${warrenCommand()} disks attach <sandbox> ${disk.name} <path>`,
  )
}

/** Of all disks, or with a sandbox of those that are attached to it. */
export async function listDisks(sandbox: string | undefined, { json }: { json?: true }): Promise<void> {
  const api = await getApi()
  if (sandbox === undefined) {
    const disks = await listAll<DiskView>(api, '/v1/disks')
    return void process.stdout.write(json ? `${JSON.stringify(disks)}\n` : renderDisks(disks))
  }
  const mounts = await listAll<DiskAttachmentView>(api, `/v1/sandboxes/${await getSandboxId(api, sandbox)}/disks`)
  process.stdout.write(json ? `${JSON.stringify(mounts)}\n` : renderMounts(mounts))
  for (const { mount_path, warning } of json ? [] : mounts) {
    if (warning !== undefined) process.stderr.write(`warning: ${mount_path}: ${warning}\n`)
  }
}

export async function rotateDisk(disk: string, options: CredentialOptions): Promise<void> {
  const credentials = await readCredentials(options)
  const api = await getApi()
  const { name } = await callApi<DiskView>(api, 'PATCH', diskPath(disk), { credentials })
  print(`${name} has new credentials. Check its mounts with: ${warrenCommand()} disks ls <sandbox>`)
}

type AttachOptions = { subPath?: string; readOnly?: true; wait: boolean }

export async function attachDisk(
  sandbox: string,
  disk: string,
  path: string,
  { subPath, readOnly, wait }: AttachOptions,
): Promise<void> {
  const api = await getApi()
  const url = `/v1/sandboxes/${await getSandboxId(api, sandbox)}/disks`
  await callApi(api, 'POST', url, { disk_id: disk, mount_path: path, sub_path: subPath, read_only: readOnly })
  if (!wait) return print(`${disk} is attached at ${path}. See its status with: ${warrenCommand()} disks ls ${sandbox}`)
  await waitForMount(api, url, disk, path)
  print(`${disk} is mounted at ${path}.`)
}

export async function detachDisk(sandbox: string, disk: string, path: string): Promise<void> {
  const api = await getApi()
  const id = await getSandboxId(api, sandbox)
  const url = `/v1/sandboxes/${id}/disks/${encodeURIComponent(disk)}?mount_path=${encodeURIComponent(path)}`
  const { warning } = await callApi<DiskDetachView>(api, 'DELETE', url)
  print(`${disk} is detached from ${path}.`)
  if (warning !== undefined) process.stderr.write(`warning: ${warning}\n`)
}

export async function removeDisks(disks: string[]): Promise<void> {
  const api = await getApi()
  for (const disk of disks) {
    await callApi(api, 'DELETE', diskPath(disk))
    print(`Deleted ${disk}. Its bucket and the contents remain.`)
  }
}

/** Throws if the mount fails, or is detached meanwhile. `path` is as it was given. */
export async function waitForMount(api: Api, url: string, disk: string, path: string, pollMs = POLL_MS): Promise<void> {
  const wanted = trimPath(path)
  for (const deadline = Date.now() + MOUNT_LIMIT_MS; Date.now() < deadline; await delay(pollMs)) {
    const mount = (await listAll<DiskAttachmentView>(api, url)).find(({ mount_path }) => mount_path === wanted)
    if (!mount) throw new Error(`${disk} was detached from ${path} before it was mounted`)
    if (mount.mount_status === 'mounted') return
    if (mount.mount_status === 'failed') throw new Error(`${disk} could not be mounted: ${mount.mount_error}`)
  }
  throw new Error(`${disk} is attached, but not mounted after ${MOUNT_LIMIT_MS / 1000} s`)
}

/** As the API shows it. */
const trimPath = (path: string): string =>
  `/${path
    .split('/')
    .filter((part) => part !== '' && part !== '.')
    .join('/')}`

async function listAll<Item>(api: Api, path: string): Promise<Item[]> {
  const items: Item[] = []
  for (;;) {
    const { data } = await callApi<Page<Item>>(api, 'GET', `${path}?limit=${PAGE_ITEMS}&offset=${items.length}`)
    items.push(...data)
    if (data.length < PAGE_ITEMS) return items
  }
}

const diskPath = (disk: string): string => `/v1/disks/${encodeURIComponent(disk)}`

const renderDisks = (disks: DiskView[]): string =>
  renderTable<DiskView>(
    [
      { title: 'ID', cell: ({ id }) => id },
      { title: 'NAME', cell: ({ name }) => name },
      { title: 'BUCKET', cell: ({ config }) => config.bucket },
      { title: 'ENDPOINT', cell: ({ config }) => config.endpoint },
      { title: 'REGION', cell: ({ config }) => config.region },
      { title: 'CREATED', cell: ({ created_at }) => created_at.replace(/\.\d+Z$/, 'Z') },
    ],
    disks,
  )

const renderMounts = (mounts: DiskAttachmentView[]): string =>
  renderTable<DiskAttachmentView>(
    [
      { title: 'PATH', cell: ({ mount_path }) => mount_path },
      { title: 'DISK', cell: ({ name }) => name },
      { title: 'BUCKET', cell: ({ config }) => config.bucket },
      { title: 'PREFIX', cell: ({ sub_path = '' }) => sub_path },
      { title: 'ACCESS', cell: ({ read_only }) => (read_only ? 'read-only' : 'read-write') },
      { title: 'STATUS', cell: ({ mount_status }) => mount_status },
      { title: 'ERROR', cell: ({ mount_error = '' }) => mount_error },
    ],
    mounts,
  )

function print(text: string): void {
  process.stdout.write(`${text}\n`)
}
