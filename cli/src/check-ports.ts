/** Checks that the ports are free before anything starts, so that a taken port gives one clear sentence. */

import { once } from 'node:events'
import { createServer } from 'node:net'
import { networkInterfaces } from 'node:os'
import { readConfig } from '@warren/kit/config'
import { GATEWAY_LISTENERS } from '@warren/kit/shared-settings'
import { warrenCommand } from '@warren/kit/warren-command'
import type { Listeners } from './config.ts'

type Parts = { servesGuests: boolean; hasGateway: boolean }

export async function checkPorts(listeners: Listeners, { servesGuests, hasGateway }: Parts): Promise<void> {
  const { host, port, guestHost, metricsHost, metricsPort, ingress, ingressHost, ingressPort } = listeners
  await checkPort(host, port, 'WARREN_HOST', 'WARREN_PORT')
  // Without another Warren on this machine the address does not exist yet, and nothing can listen on it.
  if (servesGuests && hasAddress(guestHost)) await checkPort(guestHost, port, 'WARREN_GUEST_HOST', 'WARREN_PORT')
  await checkPort(metricsHost, metricsPort, 'WARREN_METRICS_HOST', 'WARREN_METRICS_PORT')
  if (ingress) await checkPort(ingressHost || host, ingressPort, 'WARREN_INGRESS_HOST', 'WARREN_INGRESS_PORT')
  if (hasGateway) await checkGatewayPorts()
}

async function checkGatewayPorts(): Promise<void> {
  const { host, port, appsHost, appsPort, metricsHost, metricsPort } = readConfig(GATEWAY_LISTENERS, process.env)
  await checkPort(host, port, 'WARREN_GATEWAY_HOST', 'WARREN_GATEWAY_PORT')
  await checkPort(appsHost || host, appsPort, 'WARREN_GATEWAY_APPS_HOST', 'WARREN_GATEWAY_APPS_PORT')
  await checkPort(metricsHost, metricsPort, 'WARREN_GATEWAY_METRICS_HOST', 'WARREN_GATEWAY_METRICS_PORT')
}

const hasAddress = (wanted: string): boolean =>
  Object.values(networkInterfaces()).some((addresses) => addresses?.some(({ address }) => address === wanted))

async function checkPort(host: string, port: number, hostSetting: string, portSetting: string): Promise<void> {
  const server = createServer()
  try {
    server.listen(port, host)
    await once(server, 'listening')
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException
    if (code === 'EADDRINUSE') {
      throw new Error(
        `another program listens on port ${port} of ${host}. Stop it, or choose another port: ${portSetting}=${port + 1} ${warrenCommand()} start`,
      )
    }
    if (code === 'EACCES') {
      throw new Error(
        `only root may listen on port ${port}. Choose one above 1023: ${portSetting}=${port + 8000} ${warrenCommand()} start`,
      )
    }
    throw new Error(`cannot listen on ${host}, the value of ${hostSetting}`, { cause: error })
  } finally {
    server.close()
  }
}
