/**
 * `warren disks demo`: shows a disk without any S3 store at hand. It starts one on this machine, registers a bucket of it, mounts that
 * in a new sandbox, passes a file in each direction, and removes everything again.
 */
import { randomBytes } from 'node:crypto'
import type { DiskView, SandboxView } from '@warren/protocol'
import { type Api, callApi, getLocalApi } from '../api.ts'
import { waitForMount } from './commands.ts'
import { type DemoStore, startDemoStore } from './demo-store.ts'

const BUCKET = 'demo'
const MOUNT_PATH = '/mnt/demo'

export async function runDiskDemo(): Promise<void> {
  // The store is on loopback, which only the local user of an instance may use.
  const api = await getLocalApi()
  print('Starting an S3 store …')
  const store = await startDemoStore()
  const undo: (() => Promise<unknown>)[] = [() => store.close()]
  try {
    await showDisk(api, store, undo)
  } finally {
    for (const step of undo.reverse()) await step()
  }
  print('Removed the sandbox, the disk and the store.')
}

async function showDisk(api: Api, store: DemoStore, undo: (() => Promise<unknown>)[]): Promise<void> {
  await store.request('PUT', BUCKET, '')
  print(`It runs at ${store.endpoint}, and has the bucket ${BUCKET}.`)

  const { accessKey, secretKey } = store.credentials
  const disk = await callApi<DiskView>(api, 'POST', '/v1/disks', {
    name: `demo-${randomBytes(3).toString('hex')}`,
    kind: 's3',
    config: { bucket: BUCKET, endpoint: store.endpoint },
    credentials: { access_key: accessKey, secret_key: secretKey },
  })
  undo.push(() => callApi(api, 'DELETE', `/v1/disks/${disk.id}`))
  print(`Registered it as the disk ${disk.name}.`)

  const sandbox = await callApi<SandboxView>(api, 'POST', '/v1/sandboxes', {
    shape: 's-1vcpu-256mb',
    disks: [{ disk_id: disk.id, mount_path: MOUNT_PATH }],
  })
  undo.push(() => callApi(api, 'DELETE', `/v1/sandboxes/${sandbox.id}`))
  await waitForMount(api, `/v1/sandboxes/${sandbox.id}/disks`, disk.name, MOUNT_PATH)
  print(`Created the sandbox ${sandbox.name} with the disk at ${MOUNT_PATH}.`)

  const write = `echo "hello from $(hostname)" > ${MOUNT_PATH}/hello.txt`
  await runInSandbox(api, sandbox, write)
  print(`\nIn the sandbox:  ${write}`)
  print(`In the bucket:   hello.txt: ${(await store.request('GET', BUCKET, 'hello.txt')).trim()}`)

  await store.request('PUT', BUCKET, 'reply.txt', 'hello from the bucket\n')
  const read = `cat ${MOUNT_PATH}/reply.txt && ls -l ${MOUNT_PATH}`
  print(`\nIn the bucket:   reply.txt was added`)
  // A directory that was just read is read again after at most two seconds.
  const script = `until [ -e ${MOUNT_PATH}/reply.txt ]; do sleep 0.2; done; ${read}`
  print(`In the sandbox:  ${read}\n${await runInSandbox(api, sandbox, script)}`)
}

async function runInSandbox(api: Api, { id, name }: SandboxView, script: string): Promise<string> {
  type Exec = { result: { stdout: string; stderr: string; exit_code: number } }
  const command = { cmd: 'sh', args: ['-c', script] }
  const { result } = await callApi<Exec>(api, 'POST', `/v1/sandboxes/${id}/exec`, command)
  if (result.exit_code !== 0) throw new Error(`a command in ${name} failed: ${result.stderr.trim()}`)
  return result.stdout
}

function print(text: string): void {
  process.stdout.write(`${text}\n`)
}
