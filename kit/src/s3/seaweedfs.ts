/** How SeaweedFS is started as a small S3 store of this machine: by tests, and by `warren disks demo`. */
import { homedir } from 'node:os'
import path from 'node:path'
import type { S3Credentials } from './sign.ts'

/** As many as it needs; the first is that of S3. */
export const SEAWEEDFS_PORTS = 8

/** Installed by tools/s3-servers.sh. */
export function s3ServerProgram(name: 'seaweedfs' | 'versitygw'): string {
  const cache = process.env.XDG_CACHE_HOME || path.join(homedir(), '.cache')
  return path.join(cache, 'warren/test-tools/bin', name)
}

export type SeaweedfsSettings = { dataDir: string; configFile: string; ports: readonly number[] }

/** `configFile` has what renderSeaweedfsConfig returns. */
export function renderSeaweedfsArgs({ dataDir, configFile, ports }: SeaweedfsSettings): string[] {
  const [s3, s3Grpc, master, masterGrpc, volume, volumeGrpc, filer, filerGrpc] = ports
  return [
    '-logtostderr=true',
    'server',
    `-dir=${dataDir}`,
    '-ip=127.0.0.1',
    '-ip.bind=127.0.0.1',
    `-master.port=${master}`,
    `-master.port.grpc=${masterGrpc}`,
    '-master.volumeSizeLimitMB=1024',
    '-master.volumePreallocate=false',
    '-master.telemetry=false',
    // Short, because the only master waits for it after a restart.
    '-master.electionTimeout=500ms',
    '-master.heartbeatInterval=100ms',
    `-volume.port=${volume}`,
    `-volume.port.grpc=${volumeGrpc}`,
    '-volume.max=100',
    // The percentage of free disk below which it refuses writes.
    '-volume.minFreeSpace=1',
    '-filer',
    `-filer.port=${filer}`,
    `-filer.port.grpc=${filerGrpc}`,
    '-s3',
    `-s3.port=${s3}`,
    `-s3.port.grpc=${s3Grpc}`,
    '-s3.port.iceberg=0',
    '-s3.port.lance=0',
    `-s3.config=${configFile}`,
  ]
}

/** These credentials have access to everything. */
export function renderSeaweedfsConfig({ accessKey, secretKey }: S3Credentials): string {
  const actions = ['Admin', 'Read', 'List', 'Tagging', 'Write']
  return JSON.stringify({ identities: [{ name: 'owner', credentials: [{ accessKey, secretKey }], actions }] })
}

/** Until its volume server has registered at the master, SeaweedFS answers requests for objects with 500. */
export async function hasSeaweedfsVolumes(ports: readonly number[]): Promise<boolean> {
  const status = await fetch(`http://127.0.0.1:${ports[2]}/dir/status`).then((response) => response.json())
  return (status as { Topology?: { Max?: number } }).Topology?.Max !== 0
}

/** SeaweedFS opens a socket for each of its ports here, whatever TMPDIR is, and leaves it when it is killed. */
export const listSeaweedfsSockets = (ports: readonly number[]): string[] =>
  ports.flatMap((port) =>
    ['s3', 's3-grpc', 'master-grpc', 'volume-grpc', 'filer', 'filer-grpc'].map(
      (part) => `/tmp/seaweedfs-${part}-${port}.sock`,
    ),
  )
