/** Screens of a desktop and access to them over VNC. */
import { type Static, Type } from 'typebox'
import { Timestamp } from './ids.ts'
import { optionalNull } from './optional-null.ts'

/** X11 coordinates are signed 16-bit integers. */
const COORDINATE_MAX = 32_767
export const Pixels = Type.Integer({ minimum: -COORDINATE_MAX - 1, maximum: COORDINATE_MAX })
export const SideLength = Type.Integer({ minimum: 1, maximum: COORDINATE_MAX })

export const SCREENS_MAX = 8
export const SCREEN_WIDTH_DEFAULT = 1280
export const SCREEN_HEIGHT_DEFAULT = 800
/** Always exists and cannot be deleted. */
export const PRIMARY_SCREEN_ID = 'screen-0'

export const ScreenId = Type.String({ pattern: `^screen-[0-${SCREENS_MAX - 1}]$` })

export const ScreenView = Type.Object({
  screen_id: ScreenId,
  display: Type.String(),
  width: Type.Integer(),
  height: Type.Integer(),
  vnc_port: Type.Integer(),
  novnc_port: Type.Integer(),
})
export type ScreenView = Static<typeof ScreenView>

/** Display and ports follow from the number in the id. Undefined for an id that no screen can have. */
export function screenAddress(screenId: string): Pick<ScreenView, 'display' | 'vnc_port' | 'novnc_port'> | undefined {
  const number = Number(/^screen-([0-7])$/.exec(screenId)?.[1] ?? Number.NaN)
  if (Number.isNaN(number)) return undefined
  return { display: `:${number}`, vnc_port: 5900 + number, novnc_port: 6080 + number }
}

export const ScreenListView = Type.Array(ScreenView)

export const ScreenParams = Type.Object({
  id: Type.String({ description: 'Sandbox id' }),
  screen: Type.String({ description: 'Screen id' }),
})
export type ScreenParams = Static<typeof ScreenParams>

/** The response has status 201. */
export const ScreenCreateBody = Type.Object({
  width: optionalNull(Type.Integer({ ...SideLength, description: `Defaults to ${SCREEN_WIDTH_DEFAULT}.` })),
  height: optionalNull(Type.Integer({ ...SideLength, description: `Defaults to ${SCREEN_HEIGHT_DEFAULT}.` })),
})
export type ScreenCreateBody = Static<typeof ScreenCreateBody>

export const ScreenResizeBody = Type.Object({ width: SideLength, height: SideLength })
export type ScreenResizeBody = Static<typeof ScreenResizeBody>

/** Token and URL are credentials. A new token invalidates the previous one for new connections only. */
export const ScreenConnectView = Type.Object({
  screen_id: ScreenId,
  port: Type.Integer(),
  path: Type.String({ description: 'Path of the viewer. It also works with the base URL of the API.' }),
  token: Type.String(),
  expires_at: Timestamp,
  url: Type.String(),
})
export type ScreenConnectView = Static<typeof ScreenConnectView>
