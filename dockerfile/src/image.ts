/** What an image says about the programs that run in it. */
import type { Healthcheck } from './instruction.ts'
import type { PortRange } from './ports.ts'

export type ImageConfig = {
  env: Record<string, string>
  /** `name`, `name:group` or their numbers; empty means root. */
  user: string
  workdir: string
  shell: string[]
  cmd: string[] | undefined
  entrypoint: string[] | undefined
  ports: PortRange[]
  volumes: string[]
  labels: Record<string, string>
  stopSignal: string | undefined
  healthcheck: ImageHealthcheck | 'NONE' | undefined
}

export type ImageHealthcheck = Omit<Healthcheck, 'command'> & { argv: string[] }

/** `FROM scratch`, and what any other base has unless it says otherwise. */
export const EMPTY_IMAGE: ImageConfig = {
  env: { PATH: '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' },
  user: '',
  workdir: '/',
  shell: ['/bin/sh', '-c'],
  cmd: undefined,
  entrypoint: undefined,
  ports: [],
  volumes: [],
  labels: {},
  stopSignal: undefined,
  healthcheck: undefined,
}
