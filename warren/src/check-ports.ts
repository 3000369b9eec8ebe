/**
 * Are the ports free? Asked before anything starts: it is what newcomers stumble over most, and they get a sentence
 * instead of a stack.
 */
import { once } from 'node:events'
import { createServer } from 'node:net'
import type { Doors } from './config.ts'

export async function checkDoors(doors: Doors): Promise<void> {
  await checkDoor(doors.host, doors.port, 'WARREN_HOST', 'WARREN_PORT')
  await checkDoor(doors.metricsHost, doors.metricsPort, 'WARREN_METRICS_HOST', 'WARREN_METRICS_PORT')
  if (!doors.ingress) return
  await checkDoor(doors.ingressHost || doors.host, doors.ingressPort, 'WARREN_INGRESS_HOST', 'WARREN_INGRESS_PORT')
}

async function checkDoor(host: string, port: number, hostName: string, portName: string): Promise<void> {
  const server = createServer()
  try {
    server.listen(port, host)
    await once(server, 'listening')
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException
    if (code === 'EADDRINUSE') {
      throw new Error(
        `another program listens on port ${port} of ${host}. Stop it, or choose another port: ${portName}=${port + 1} npm start`,
      )
    }
    if (code === 'EACCES') {
      throw new Error(
        `only root may listen on port ${port}. Choose one above 1023: ${portName}=${port + 8000} npm start`,
      )
    }
    throw new Error(`cannot listen on ${host}, the value of ${hostName}`, { cause: error })
  } finally {
    server.close()
  }
}
